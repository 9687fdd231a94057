"""Convolutions and 2×2 poolings of a whole stack on a GPU, without writing image patches to memory.

cuDNN runs a grouped convolution group by group, and products over patches (`patches.py`) spend most of their time on
writing and reading the patches. These kernels read them where they are: a convolution of all clients is one launch, its
gradients are two more. Nothing is added up in an order that depends on timing: the same bits every time.

A layer's bias is the weight of one more value in every patch, which is 1.
"""

from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_vmap

try:
    from fedexperts.engine import kernels
except ImportError:  # torch for CPUs comes without Triton
    kernels = None  # type: ignore[assignment]

ROWS = 128
"""Places of the output that one program computes."""
PROGRAMS = 8192
"""At most about so many share the gradient of a layer's weights."""
WIDEST = 128
"""Channels or filters that a program holds at once, at most."""
LANES = 1024
"""Values that one program pools."""
MOST = 2**31
"""Values among which a kernel finds its own by an index of 32 bits."""
THIN = 128
"""Up to so many values in a patch are taken in small blocks."""


def available(x: Tensor) -> bool:
    return kernels is not None and x.is_cuda and x.dtype != torch.float64


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """x: samples × height × width × channels; weight: filters × height × width × channels. Strides of 1."""
    _, height, width, _ = weight.shape
    values = weight.flatten(1) if bias is None else torch.cat([weight.flatten(1), bias[:, None]], 1)
    out: Tensor = _convolve(x[None], values[None], height, width, *padding, bias is not None)
    return out[0]


@custom_op("fedexperts::convolve", mutates_args=(), device_types="cuda")
def _convolve(x: Tensor, weight: Tensor, height: int, width: int, above: int, left: int, bias: bool) -> Tensor:
    """x: stack × samples × height × width × channels; weight: stack × filters × values of a patch."""
    x, weight = x.contiguous(), weight.contiguous()
    stack, samples, rows, columns, channels = x.shape
    filters = weight.shape[1]
    down, across = rows + 2 * above - height + 1, columns + 2 * left - width + 1
    out = x.new_empty(stack, samples, down, across, filters)
    places = samples * down * across
    kernels.convolve[(ceil(places / ROWS), stack)](
        x, weight, out, places, rows, columns, down, across,
        CHANNELS=channels, FILTERS=filters, HEIGHT=height, WIDTH=width, ABOVE=above, LEFT=left, BIAS=bias,
        BLOCK_M=ROWS, BLOCK_N=_width(filters), BLOCK_K=16 if weight.shape[2] <= THIN else 32,
        PRECISION=_precision(x), num_stages=1,
    )  # fmt: skip
    return out


@custom_op("fedexperts::weight_gradient", mutates_args=(), device_types="cuda")
def _weight_gradient(x: Tensor, gradient: Tensor, height: int, width: int, above: int, left: int, bias: bool) -> Tensor:
    """Of `_convolve`'s weight, from that of its output."""
    x, gradient = x.contiguous(), gradient.contiguous()
    stack, samples, rows, columns, channels = x.shape
    _, _, down, across, filters = gradient.shape
    values, places = height * width * channels + bias, samples * down * across
    block = 32 if values <= THIN else 64
    blocks = ceil(values / block)
    pieces = max(1, min(PROGRAMS // (stack * blocks), places // (4 * ROWS)))
    each = ROWS * ceil(places / pieces / ROWS)
    pieces = ceil(places / each)
    out = torch.empty(stack, pieces, filters, values, dtype=torch.float32, device=x.device)
    kernels.weight_gradient[(blocks, pieces, stack)](
        x, gradient, out, places, each, rows, columns, down, across,
        CHANNELS=channels, FILTERS=filters, HEIGHT=height, WIDTH=width, ABOVE=above, LEFT=left, BIAS=bias,
        BLOCK_M=64, BLOCK_N=_width(filters), BLOCK_K=block, PRECISION=_precision(x),
        num_stages=1,
    )  # fmt: skip
    return out.sum(1).to(x.dtype)


def pool(x: Tensor) -> Tensor:
    """The largest of each 2×2; x: samples × height × width × channels."""
    out: Tensor = _pool(x)
    return out


@custom_op("fedexperts::pool", mutates_args=(), device_types="cuda")
def _pool(x: Tensor) -> Tensor:
    if x.numel() >= MOST:
        return torch.cat([_pool(part) for part in x.chunk(2)])
    x = x.contiguous()
    samples, rows, columns, channels = x.shape
    out = x.new_empty(samples, rows // 2, columns // 2, channels)
    kernels.pool[(ceil(out.numel() / LANES),)](x, out, out.numel(), rows, columns, channels, BLOCK=LANES)
    return out


@custom_op("fedexperts::pool_gradient", mutates_args=(), device_types="cuda")
def _pool_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    if x.numel() >= MOST:
        return torch.cat([_pool_gradient(*parts) for parts in zip(x.chunk(2), gradient.chunk(2), strict=True)])
    x, gradient = x.contiguous(), gradient.contiguous()
    _, rows, columns, channels = x.shape
    out = torch.zeros_like(x) if rows % 2 or columns % 2 else torch.empty_like(x)
    kernels.pool_gradient[(ceil(gradient.numel() / LANES),)](
        x, gradient, out, gradient.numel(), rows, columns, channels, BLOCK=LANES
    )
    return out


def _width(filters: int) -> int:
    """Of a block that has all filters: a power of 2 that a GPU can multiply with."""
    return max(16, 1 << (filters - 1).bit_length())


def _precision(x: Tensor) -> str:
    """Of products: three of TF32 are as good as one of float32, and quicker."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 or x.dtype != torch.float32 else "tf32x3"


# --- what they are to autograd and to vmap


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *ctx.shape = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    height, width, above, left, bias = ctx.shape
    of_x = of_weight = None
    if ctx.needs_input_grad[0]:  # again a convolution: with the filters turned round, and patches that reach outside
        turned = weight[..., : weight.shape[-1] - bias].unflatten(-1, (height, width, -1)).flip(2, 3)
        turned = turned.permute(0, 4, 2, 3, 1).flatten(2)
        of_x = _convolve(gradient, turned, height, width, height - 1 - above, width - 1 - left, False)
    if ctx.needs_input_grad[1]:
        of_weight = _weight_gradient(x, gradient, height, width, above, left, bias)
    return of_x, of_weight, None, None, None, None, None


def _over_stack(function: Any, tensors: int, shares: bool = False) -> Any:
    """A stack of stacks is a longer stack, and one of samples more samples; the first arguments are tensors.

    `shares`: the second ones may be filters that all of the outer stack have in common. Its samples are then more
    samples of each, and no filters are copied.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        if shares and in_dims[0] is not None and in_dims[1] is None:
            x, filters = args[0].movedim(in_dims[0], 1), args[1].shape[1]  # x: stack × outer stack × samples …
            if max(x.shape[-1], filters) * x[0, ..., 0].numel() < MOST:
                out: Tensor = function(x.flatten(1, 2), *args[1:])
                return out.reshape(len(x), info.batch_size, -1, *out.shape[2:]), 1
        stacks = [
            a.expand(info.batch_size, *a.shape) if dim is None else a.movedim(dim, 0)
            for a, dim in zip(args[:tensors], in_dims[:tensors], strict=True)
        ]
        out = function(*(stack.flatten(0, 1) for stack in stacks), *args[tensors:])
        return out.reshape(info.batch_size, -1, *out.shape[1:]), 0

    return rule


_convolve.register_autograd(_backward, setup_context=_setup)
_pool.register_autograd(
    lambda ctx, gradient: _pool_gradient(*ctx.saved_tensors, gradient),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
register_vmap(_convolve, _over_stack(_convolve, 2, shares=True))
for _operator, _tensors in ((_weight_gradient, 2), (_pool, 1), (_pool_gradient, 2)):
    register_vmap(_operator, _over_stack(_operator, _tensors))


@_convolve.register_fake
def _(x: Tensor, weight: Tensor, height: int, width: int, above: int, left: int, bias: bool) -> Tensor:
    stack, samples, rows, columns, _ = x.shape
    return x.new_empty(stack, samples, rows + 2 * above - height + 1, columns + 2 * left - width + 1, weight.shape[1])


@_weight_gradient.register_fake
def _(x: Tensor, gradient: Tensor, height: int, width: int, above: int, left: int, bias: bool) -> Tensor:
    return x.new_empty(x.shape[0], gradient.shape[-1], height * width * x.shape[-1] + bias)


@_pool.register_fake
def _(x: Tensor) -> Tensor:
    samples, rows, columns, channels = x.shape
    return x.new_empty(samples, rows // 2, columns // 2, channels)


@_pool_gradient.register_fake
def _(x: Tensor, gradient: Tensor) -> Tensor:
    return torch.empty_like(x)
