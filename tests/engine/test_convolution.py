"""How convolutions of a stack are laid together under `vmap`; that their kernels are right is test_cuda.py's."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedexperts.engine import convolution
from fedexperts.engine.convolution import _over_stack

CLIENTS, MODULES, SAMPLES, CHANNELS, FILTERS = 4, 3, 5, 2, 6


def convolve(x: Tensor, weight: Tensor, height: int, width: int, above: int, left: int, bias: bool) -> Tensor:
    """What `convolution._convolve` computes, written out."""
    each = []
    for images, values in zip(x, weight, strict=True):
        filters = values[:, : values.shape[1] - bias].reshape(-1, height, width, images.shape[-1]).permute(0, 3, 1, 2)
        out = F.conv2d(images.permute(0, 3, 1, 2), filters, values[:, -1] if bias else None, padding=(above, left))
        each.append(out.permute(0, 2, 3, 1))
    return torch.stack(each)


@pytest.mark.parametrize("most", [convolution.MOST, 0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("place", [0, 2])
def test_filters_that_all_clients_have_in_common_are_not_copied(
    most: int, bias: bool, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PM-MoE's pool: every client's images through every module. `most`: where the samples are too many, they are."""
    monkeypatch.setattr(convolution, "MOST", most)
    shape, seen = (3, 5, 1, 2, bias), []
    x = torch.randn(CLIENTS, MODULES, SAMPLES, 7, 8, CHANNELS, dtype=torch.float64)
    weight = torch.randn(MODULES, FILTERS, 3 * 5 * CHANNELS + bias, dtype=torch.float64)

    def noted(x: Tensor, weight: Tensor, *shape: int) -> Tensor:
        seen.append(len(weight))
        return convolve(x, weight, *shape)

    rule = _over_stack(noted, 2, shares=True)
    info = SimpleNamespace(batch_size=CLIENTS)
    out, dim = rule(info, (place, None, *[None] * 5), x.movedim(0, place), weight, *shape)
    expected = torch.stack([convolve(own, weight, *shape) for own in x])
    torch.testing.assert_close(out.movedim(dim, 0), expected)
    assert seen == [MODULES if most else CLIENTS * MODULES]


def test_filters_of_their_own_make_a_longer_stack() -> None:
    x = torch.randn(CLIENTS, MODULES, SAMPLES, 7, 8, CHANNELS, dtype=torch.float64)
    weight = torch.randn(CLIENTS, MODULES, FILTERS, 9 * CHANNELS, dtype=torch.float64)
    rule = _over_stack(convolve, 2, shares=True)
    out, dim = rule(SimpleNamespace(batch_size=CLIENTS), (0, 0, *[None] * 5), x, weight, 3, 3, 1, 1, False)
    expected = torch.stack([convolve(own, filters, 3, 3, 1, 1, False) for own, filters in zip(x, weight, strict=True)])
    torch.testing.assert_close(out.movedim(dim, 0), expected)
