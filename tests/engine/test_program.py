import numpy as np
import pytest
import torch
from torch import nn

from fedexperts.engine.patches import PatchConv2d, make_stackable
from fedexperts.engine.program import Program, signature
from fedexperts.methods import Model


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(5, 1, 0), (3, 2, 1), ((3, 1), 1, (1, 0)), (1, 1, 0)])
@pytest.mark.parametrize("channels", [3, 64])
def test_patch_convolution_equals_convolution(kernel: object, stride: int, padding: object, channels: int) -> None:
    plain = nn.Conv2d(channels, 32, kernel, stride, padding, dtype=torch.float64)  # type: ignore[arg-type]
    patch = nn.Sequential(nn.Conv2d(channels, 32, kernel, stride, padding, dtype=torch.float64))  # type: ignore[arg-type]
    make_stackable(patch)
    assert type(patch[0]) is PatchConv2d
    patch.load_state_dict({f"0.{name}": tensor for name, tensor in plain.state_dict().items()})
    x = torch.randn(4, channels, 9, 11, dtype=torch.float64, requires_grad=True)
    results = []
    for layer in (plain, patch):
        out = layer(x)
        gradients = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
        results.append([out, *gradients])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_other_convolutions_stay_convolutions() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2), nn.Conv2d(4, 4, 3, padding="same", bias=False)
    )
    x = torch.randn(2, 4, 16, 16)
    expected = model(x)
    make_stackable(model)
    assert not any(isinstance(layer, PatchConv2d) for layer in model)
    assert torch.equal(model(x), expected)


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.layer = nn.Linear(2, 2)


def test_models_that_differ_only_in_a_setting_are_not_stacked_together() -> None:
    assert signature(Scaled(1.0)) == signature(Scaled(1.0))
    assert signature(Scaled(1.0)) != signature(Scaled(2.0))
    assert signature(nn.Dropout(0.1)) != signature(nn.Dropout(0.2))
    assert signature(nn.Linear(2, 3)) != signature(nn.Linear(2, 4))
    assert signature(Scaled([1.0])) != signature(Scaled([2.0]))  # type: ignore[arg-type]
    for one, other in ((0.0, 1.0), (0.1, 0.1 + 1e-15)):  # in the middle of an array that is not shown in full
        tables = [np.array([*[0.1] * 1000, middle, *[0.1] * 1000]) for middle in (one, other)]
        assert signature(Scaled(tables[0])) == signature(Scaled(tables[0].copy()))  # type: ignore[arg-type]
        assert signature(Scaled(tables[0])) != signature(Scaled(tables[1]))  # type: ignore[arg-type]
    assert signature(Scaled(torch.relu)) != signature(Scaled(torch.sigmoid))  # type: ignore[arg-type]


def test_a_missing_tensor_is_an_error() -> None:
    program = Program(Model({"head": nn.Linear(2, 2)}))
    with pytest.raises(RuntimeError, match=r"head\.bias"):
        program.bind(lambda model, x: model.head(x))({"head.weight": torch.ones(2, 2)}, torch.ones(1, 2))
