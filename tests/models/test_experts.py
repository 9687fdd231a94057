"""Experts in a stack of clients: the numbers of those that each sample is sent to."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedexperts.models import BlockExperts, SparseExperts
from fedexperts.models.experts import BLOCK, SPARE, SPARE_LINEAR

SAMPLES = 96


def linear(experts: int) -> SparseExperts:
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 5)) for _ in range(experts)]
    return SparseExperts(made, 5).double()


def sent(experts: int, per_sample: int) -> tuple[Tensor, Tensor, Tensor]:
    """Samples, and where each goes with which weight: nobody to the last expert."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 3, 4, generator=draw, dtype=torch.float64)
    scores = torch.rand(SAMPLES, experts - 1, generator=draw, dtype=torch.float64)
    weights, chosen = scores.topk(per_sample, dim=1)
    return x, chosen, weights


@pytest.mark.parametrize(("experts", "per_sample", "in_blocks"), [(3, 1, False), (9, 4, False), (60, 1, True)])
def test_linear_experts_in_a_stack_have_the_numbers_and_gradients_of_sparse_ones(
    experts: int, per_sample: int, in_blocks: bool
) -> None:
    assert (experts * SAMPLES > SPARE_LINEAR * BLOCK * (SAMPLES * per_sample // BLOCK + experts)) == in_blocks
    assert_alike(linear(experts), *sent(experts, per_sample))


def convolutional(*filters: int) -> SparseExperts:
    torch.manual_seed(0)
    made = [
        nn.Sequential(nn.Conv2d(1, count, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6 * count, 5)) for count in filters
    ]
    return SparseExperts(made, 5).double()


@pytest.mark.parametrize("filters", [(4, 4), (4, 4, 4, 4), (4, 3, 2, 2)])
def test_convolutional_experts_in_a_stack_too_of_the_same_shape_or_not(filters: tuple[int, ...]) -> None:
    """Two of a shape see all samples, four have blocks, and those of different shapes can have none."""
    experts = len(filters)
    assert (experts * SAMPLES > SPARE * BLOCK * (SAMPLES // BLOCK + experts)) == (experts == 4)
    x, chosen, weights = sent(experts, 1)
    assert_alike(convolutional(*filters), x[:, None], chosen, weights)


def assert_alike(sparse: SparseExperts, x: Tensor, chosen: Tensor, weights: Tensor) -> None:
    """In blocks they have the same outputs and gradients."""
    stacked = copy.deepcopy(sparse)
    stacked.__class__ = BlockExperts
    found = []
    for model in (sparse, stacked):
        inputs, shares = x.clone().requires_grad_(), weights.clone().requires_grad_()
        out = model(inputs, chosen, shares)
        out.square().sum().backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        assert not any(gradient.any() for gradient in gradients[-4:]), "nobody was sent to the last: it stays as it is"
        found.append([out, inputs.grad, shares.grad, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)
