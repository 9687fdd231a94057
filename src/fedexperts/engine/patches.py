"""Convolutions that are quick in a stack of clients: one product over image patches."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from fedexperts.engine.convolution import WIDEST, available, convolve, pool
from fedexperts.models import BatchNorm, BlockExperts, SparseExperts

FEW = 2**14
"""Up to so many weights, their gradient is made sample by sample."""


class PatchConv2d(nn.Conv2d):
    """The same numbers as `nn.Conv2d`, which `vmap` turns into a grouped convolution that cuDNN runs group by group."""

    def forward(self, x: Tensor) -> Tensor:
        (kh, kw), (sh, sw), (ph, pw) = self.kernel_size, self.stride, cast(tuple[int, int], self.padding)
        dtype = _product_type(x)
        if available(x) and (sh, sw) == (1, 1) and max(self.in_channels, self.out_channels) <= WIDEST:
            bias = None if self.bias is None else self.bias.to(dtype)
            weight = self.weight.permute(0, 2, 3, 1).to(dtype)
            return convolve(x.permute(0, 2, 3, 1).to(dtype), weight, bias, (ph, pw)).permute(0, 3, 1, 2)
        x = nn.functional.pad(x, (pw, pw, ph, ph)).to(dtype)
        # With the channels last, as the data come and as this leaves them, a patch is a few long stretches of memory.
        patches = x.permute(0, 2, 3, 1).unfold(1, kh, sh).unfold(2, kw, sw).permute(0, 1, 2, 4, 5, 3)
        samples, rows, columns = patches.shape[:3]
        weight = self.weight.permute(0, 2, 3, 1).flatten(1).to(dtype)
        out: Tensor = _PatchProduct.apply(patches.reshape(samples, rows * columns, -1), weight)  # type: ignore[no-untyped-call]
        out = out if self.bias is None else out + self.bias
        return out.reshape(samples, rows, columns, -1).permute(0, 3, 1, 2)


class PatchPool2d(nn.MaxPool2d):
    """The same numbers as `nn.MaxPool2d(2)`, whose gradient is slow with the channels last."""

    def forward(self, x: Tensor) -> Tensor:
        if available(x):
            return pool(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return cast(Tensor, super().forward(x))


class _PatchProduct(torch.autograd.Function):
    """patches (samples × places × values) · weightᵀ (values × filters).

    The gradient of a few weights over a great many places is a thin product that leaves a GPU idle; made for each
    sample and then summed, it fills it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(patches: Tensor, weight: Tensor) -> Tensor:
        return patches @ weight.T

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        patches, weight = ctx.saved_tensors
        if weight.numel() <= FEW:
            of_weight = (gradient.transpose(1, 2) @ patches).sum(0)
        else:
            of_weight = gradient.flatten(0, 1).T @ patches.flatten(0, 1)
        return gradient @ weight if ctx.needs_input_grad[0] else None, of_weight


class StackedConv2d(nn.Conv2d):
    """Any other convolution: in a stack autocast does not reach it by itself."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = _product_type(x)
        bias = None if self.bias is None else self.bias.to(dtype)
        return cast(Tensor, self._conv_forward(x.to(dtype), self.weight.to(dtype), bias))


def _product_type(x: Tensor) -> torch.dtype:
    """The type that products are to be made in."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class StackedNorm(BatchNorm):
    """The same numbers, written out.

    In a stack torch's own takes no images with the channels last on a GPU, nor such in bfloat16 with statistics in
    float32.
    """

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        values = x.to(self.running_mean.dtype)
        mean, variance = self.running_mean, self.running_var
        if self.training and (count := x.numel() // self.num_features) > 1:
            variance, mean = torch.var_mean(values, (0, 2, 3), correction=0)
            cast(Tensor, self.num_batches_tracked).add_(1)
            unbiased = variance.detach() * (count / (count - 1))
            self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean.detach())
            self.running_var.mul_(1 - self.momentum).add_(self.momentum * unbiased)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        shift = self.bias - mean * scale
        return (values * scale[:, None, None] + shift[:, None, None]).to(x.dtype)


def with_fixed_shapes(model: nn.Module) -> bool:
    """Whether `fix_shapes` can be had: only layers without a state of their own are the same for all experts."""
    layers = (
        layer
        for part in model.modules()
        if isinstance(part, SparseExperts)
        for expert in part.children()
        for layer in expert.children()
    )
    return all(isinstance(layer, nn.Linear) or is_plain(layer) or not layer.state_dict() for layer in layers)


def is_plain(layer: nn.Module) -> bool:
    """Whether it is a convolution that can be a product over patches."""
    return (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def is_usual(layer: nn.BatchNorm2d) -> bool:
    """Whether it has weights, and statistics that move at a fixed rate."""
    return layer.affine and layer.track_running_stats and layer.momentum is not None


def fix_shapes(model: nn.Module) -> None:
    """Lay a model's experts into blocks, in place, so that no shape depends on values: for graphs and for stacks."""
    for part in model.modules():
        if type(part) is SparseExperts:
            part.__class__ = BlockExperts


def make_stackable(model: nn.Module) -> None:
    """Also turn plain convolutions and 2×2 poolings into those that are quick in a stack, and let the rest bear one."""
    fix_shapes(model)
    for part in model.modules():
        if type(part) in (BatchNorm, nn.BatchNorm2d) and is_usual(cast(nn.BatchNorm2d, part)):
            part.__class__ = StackedNorm
        elif type(part) is nn.Conv2d:
            part.__class__ = PatchConv2d if is_plain(part) else StackedConv2d
        elif (
            type(part) is nn.MaxPool2d
            and (part.kernel_size, part.stride, part.padding, part.dilation) == (2, 2, 0, 1)
            and not part.ceil_mode
            and not part.return_indices
        ):
            part.__class__ = PatchPool2d
