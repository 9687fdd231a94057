"""What a GPU runs for `convolution.py`, in Triton's language, where tensors are pointers and blocks of numbers."""

import triton
import triton.language as tl


@triton.jit
def _corner(i, rows, columns, channels):
    """Where the 2×2 of pooled value `i` begins."""
    channel, place = i % channels, i // channels
    across, place = place % (columns // 2), place // (columns // 2)
    down, sample = place % (rows // 2), (place // (rows // 2)).to(tl.int64)
    return ((sample * rows + 2 * down) * columns + 2 * across) * channels + channel


@triton.jit
def pool(x, out, count, rows, columns, channels, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start, below = x + _corner(i, rows, columns, channels), columns * channels
    upper = tl.maximum(tl.load(start, i < count), tl.load(start + channels, i < count), tl.PropagateNan.ALL)
    start += below
    lower = tl.maximum(tl.load(start, i < count), tl.load(start + channels, i < count), tl.PropagateNan.ALL)
    tl.store(out + i, tl.maximum(upper, lower, tl.PropagateNan.ALL), i < count)


@triton.jit
def pool_gradient(x, gradient, out, count, rows, columns, channels, BLOCK: tl.constexpr):
    """All of it goes to the first of the largest."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start, below = _corner(i, rows, columns, channels), columns * channels
    a, b = tl.load(x + start, i < count), tl.load(x + start + channels, i < count)
    c, d = tl.load(x + start + below, i < count), tl.load(x + start + below + channels, i < count)
    own = tl.load(gradient + i, i < count)
    first = (a >= b) & (a >= c) & (a >= d)
    second = (b >= c) & (b >= d) & (first == 0)
    third = (c >= d) & (first == 0) & (second == 0)
    last = (first == 0) & (second == 0) & (third == 0)
    tl.store(out + start, tl.where(first, own, 0.0), i < count)
    tl.store(out + start + channels, tl.where(second, own, 0.0), i < count)
    tl.store(out + start + below, tl.where(third, own, 0.0), i < count)
    tl.store(out + start + below + channels, tl.where(last, own, 0.0), i < count)


@triton.jit
def _patches(
    x, row, inside, k, rows, columns, down, across,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    ABOVE: tl.constexpr, LEFT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Values `k` of the patches of places `row`: a block of places × values."""
    sample, place = row // (down * across), row % (down * across)
    top, first = place // across - ABOVE, place % across - LEFT
    start = ((sample * rows + top) * columns + first) * CHANNELS
    down_k, along = k // (WIDTH * CHANNELS), k % (WIDTH * CHANNELS)
    mask = inside[:, None] & (k < HEIGHT * WIDTH * CHANNELS)[None, :]
    if ABOVE > 0 or LEFT > 0:
        y, z = top[:, None] + down_k[None, :], first[:, None] + (along // CHANNELS)[None, :]
        mask = mask & (y >= 0) & (y < rows) & (z >= 0) & (z < columns)
    found = tl.load(x + start[:, None] + (down_k * columns * CHANNELS + along)[None, :], mask=mask, other=0.0)
    if BIAS:
        found = tl.where((k == HEIGHT * WIDTH * CHANNELS)[None, :], 1.0, found).to(found.dtype)
    return found


@triton.jit
def convolve(
    x, weight, out, places, rows, columns, down, across,
    CHANNELS: tl.constexpr, FILTERS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    ABOVE: tl.constexpr, LEFT: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    VALUES: tl.constexpr = HEIGHT * WIDTH * CHANNELS + BIAS
    x += client * (places // (down * across)) * rows * columns * CHANNELS
    weight += client * FILTERS * VALUES
    row, n = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    inside = row < places
    found = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, VALUES, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        patches = _patches(x, row, inside, k, rows, columns, down, across, CHANNELS, HEIGHT, WIDTH, ABOVE, LEFT, BIAS)
        mask = (k < VALUES)[:, None] & (n < FILTERS)[None, :]
        own = tl.load(weight + n[None, :] * VALUES + k[:, None], mask=mask, other=0.0)
        found = tl.dot(patches, own, found, input_precision=PRECISION)
    out += client * places * FILTERS
    mask = inside[:, None] & (n < FILTERS)[None, :]
    tl.store(out + row[:, None] * FILTERS + n[None, :], found.to(out.dtype.element_ty), mask=mask)


@triton.jit
def weight_gradient(
    x, gradient, out, places, each, rows, columns, down, across,
    CHANNELS: tl.constexpr, FILTERS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    ABOVE: tl.constexpr, LEFT: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    piece, client = tl.program_id(1), tl.program_id(2).to(tl.int64)
    VALUES: tl.constexpr = HEIGHT * WIDTH * CHANNELS + BIAS
    x += client * (places // (down * across)) * rows * columns * CHANNELS
    gradient += client * places * FILTERS
    k, n = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_N)
    end = tl.minimum((piece + 1) * each, places)
    found = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for first in range(piece * each, end, BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        inside = row < end
        patches = _patches(x, row, inside, k, rows, columns, down, across, CHANNELS, HEIGHT, WIDTH, ABOVE, LEFT, BIAS)
        mask = (n < FILTERS)[:, None] & inside[None, :]
        own = tl.load(gradient + row[None, :] * FILTERS + n[:, None], mask=mask, other=0.0)
        found = tl.dot(own, patches, found, input_precision=PRECISION)
    out += ((client * tl.num_programs(1) + piece) * FILTERS) * VALUES
    mask = (n < FILTERS)[:, None] & (k < VALUES)[None, :]
    tl.store(out + n[:, None] * VALUES + k[None, :], found, mask=mask)
