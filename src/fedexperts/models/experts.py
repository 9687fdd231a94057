"""Experts of which each sample uses only a few."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fedexperts.errors import ModelError
from fedexperts.models.cnn import Shape
from fedexperts.models.outline import Blank
from fedexperts.models.own import Extractor
from fedexperts.models.text import WordMean
from fedexperts.models.zoo import ModelRef, build


def cut(model: ModelRef, shape: Shape, classes: int) -> tuple[nn.Module, nn.Module]:
    """A fresh model in two: an embedding (the first convolution; of texts the mean), and an expert, to the logits.

    One of the user's own is cut after its first ReLU.
    """
    parts = build(model, shape, classes)
    net, rest = parts["extractor"], OrderedDict(head=parts["head"])
    if isinstance(net, Blank):
        return net.cut(cast(nn.Linear, parts["head"]))
    if isinstance(net, Extractor):
        net, rest = net.net, OrderedDict(flatten_all=nn.Flatten(), head=parts["head"])
    layers = list(net.named_children())
    end = next((i for i, (_, layer) in enumerate(layers, 1) if isinstance(layer, nn.ReLU | WordMean)), None)
    if not isinstance(net, nn.Sequential) or end is None:
        raise ModelError(
            f"model '{model}' cannot be cut into an embedding and experts: its extractor is no Sequential with a ReLU"
        )
    return nn.Sequential(OrderedDict(layers[:end])), nn.Sequential(OrderedDict(layers[end:]) | rest)


class SparseExperts(nn.ModuleList):
    """Networks side by side, whose outputs are so wide; a sample goes only through those that it is sent to."""

    def __init__(self, experts: Iterable[nn.Module], outputs: int) -> None:
        super().__init__(experts)
        self.outputs = outputs

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Σ of the chosen experts' outputs, weighted; `chosen` and `weights` are samples × choices."""
        per_sample = chosen.shape[1]
        chosen, weights = chosen.flatten(), weights.flatten()
        mixed = weights.new_zeros(len(x), self.outputs)  # x may be in bfloat16, whose sums are not worth much
        for number, expert in enumerate(self):
            rows = ((chosen == number) & (weights != 0)).nonzero().squeeze(1)
            if len(rows):
                samples = rows // per_sample
                mixed = mixed.index_add(0, samples, weights[rows, None] * expert(x[samples]))
        return mixed


class DenseExperts(SparseExperts):
    """The same numbers, with every sample through every expert: for programs, in which nothing may depend on values."""

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        mixed = x.new_zeros(x.shape[0], self.outputs)
        for number, expert in enumerate(self):
            mixed = mixed + (weights * (chosen == number)).sum(1, keepdim=True) * expert(x)
        return mixed


def strongest(weights: Tensor, count: int, dim: int = 1, rest: float = 0.0) -> Tensor:
    """Only the `count` largest count, with the weights that they had; the others become `rest`."""
    best = weights.topk(count, dim=dim).indices  # so many, also where some are equal
    return torch.where(torch.zeros_like(weights, dtype=torch.bool).scatter(dim, best, True), weights, rest)


def best_of(weights: Tensor, count: int, dim: int = 1) -> Tensor:
    """The `count` largest, summing to 1. One alone keeps the weight that it had: of a 1 nothing could be learned."""
    kept = strongest(weights, count, dim)
    return kept if count == 1 else kept / kept.sum(dim, keepdim=True)


BLOCK = 16
"""Rows that go through one expert together, in a stack."""
SPARE, SPARE_LINEAR = 1.5, 3
"""Experts take all samples where these are at most so many times the rows in blocks. A block needs a copy of its
expert's weights, and a linear layer uses each of them for `BLOCK` products only: copying takes longer than that. With
convolutions, four experts and 50 samples (1.8 times) blocks and all samples took about as long on an H200."""


class BlockExperts(DenseExperts):
    """The same numbers, with shapes that do not depend on the routing: for stacks of clients and CUDA graphs.

    Each expert's samples are laid into blocks of so many rows, the last one filled up; a product over all blocks takes
    for each its expert's weights. At most one block per expert is wasted. A few experts (`SPARE`), and experts of
    different shapes, see all samples instead, and those that were not chosen count nothing.
    """

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        samples, per_sample = chosen.shape
        experts: list[nn.Sequential] = list(self.children())  # type: ignore[arg-type]
        pairs, blocks = samples * per_sample, samples * per_sample // BLOCK + len(experts)
        linear, alike = all(map(_is_linear, experts)), len(set(map(form, experts))) == 1
        if not alike or samples * len(experts) <= (SPARE_LINEAR if linear else SPARE) * blocks * BLOCK:
            return (
                _through_all(experts, x, chosen, weights) if linear and alike else super().forward(x, chosen, weights)
            )
        expert = chosen.flatten()
        sent = (expert[:, None] == torch.arange(len(experts), device=x.device)).long()
        rank = (sent.cumsum(0) - sent).gather(1, expert[:, None]).squeeze(1)  # a row's place among its expert's
        ends = ((sent.sum(0) + BLOCK - 1) // BLOCK).cumsum(0)  # each expert's blocks end here
        starts = torch.nn.functional.pad(ends[:-1], (1, 0))
        slot = starts.gather(0, expert) * BLOCK + rank
        source = slot.new_zeros(blocks * BLOCK).scatter(0, slot, torch.arange(pairs, device=x.device) // per_sample)
        owner = (torch.arange(blocks, device=x.device)[:, None] >= ends).sum(1).clamp(max=len(experts) - 1)
        rows = x[source]
        for layer in zip(*experts, strict=True):
            rows = _through(list(layer), rows, owner)
        found = rows[slot] * weights.flatten()[:, None]
        return found.reshape(samples, per_sample, -1).sum(1)


def _is_linear(expert: nn.Sequential) -> bool:
    return all(isinstance(layer, nn.Linear) or not layer.state_dict() for layer in expert)


def form(expert: nn.Module) -> Hashable:
    """The same for experts that compute alike, with other values: each of their layers can be one product."""
    return tuple(
        (type(layer), *(tensor.shape for tensor in layer.state_dict().values())) for layer in expert.children()
    )


def _through_all(experts: Sequence[nn.Sequential], x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Every sample through every expert, one product for all experts of a layer."""
    count, rows, apart = len(experts), x, False  # apart: experts × samples × features
    for layers in zip(*experts, strict=True):
        first = layers[0]
        if not isinstance(first, nn.Linear):
            rows = first(rows.flatten(0, 1)).reshape(count, len(x), -1) if apart else first(rows)
            continue
        weight, bias = _of_all(layers)
        if apart:
            rows = rows @ weight.mT + bias[:, None]
        else:  # all read the same: one wide layer
            wide = rows @ weight.flatten(0, 1).T + bias.flatten()
            rows, apart = wide.reshape(len(x), count, -1).transpose(0, 1), True
    share = ((chosen[..., None] == torch.arange(count, device=x.device)) * weights[..., None]).sum(1)
    return torch.einsum("se,eso->so", share, rows)


def _of_all(layers: Sequence[nn.Module]) -> tuple[Tensor, Tensor]:
    """The weights and biases of one layer of all experts."""
    return torch.stack([layer.weight for layer in layers]), torch.stack([layer.bias for layer in layers])  # type: ignore[misc]


def _through(layers: Sequence[nn.Module], rows: Tensor, owner: Tensor) -> Tensor:
    """One layer of all experts: each block of rows through its owner's."""
    first = layers[0]
    if not isinstance(first, nn.Linear | nn.Conv2d):
        return first(rows)  # type: ignore[no-any-return]
    weight, bias = (tensor[owner] for tensor in _of_all(layers))
    if isinstance(first, nn.Linear):
        blocks = rows.reshape(len(owner), BLOCK, -1)
        return (blocks @ weight.transpose(1, 2) + bias[:, None]).flatten(0, 1)
    (kh, kw), (sh, sw), (ph, pw) = first.kernel_size, first.stride, cast(tuple[int, int], first.padding)
    rows = nn.functional.pad(rows, (pw, pw, ph, ph))
    patches = rows.permute(0, 2, 3, 1).unfold(1, kh, sh).unfold(2, kw, sw).permute(0, 1, 2, 4, 5, 3)
    count, height, width = patches.shape[:3]
    flat = patches.reshape(len(owner), BLOCK * height * width, -1)
    kernel = weight.permute(0, 1, 3, 4, 2).flatten(2)
    out = flat @ kernel.transpose(1, 2) + bias[:, None]
    return out.reshape(count, height, width, -1).permute(0, 3, 1, 2)
