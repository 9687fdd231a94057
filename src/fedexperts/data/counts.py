"""Whole numbers of samples: how many go where, and then which."""

import numpy as np
import numpy.typing as npt

from fedexperts.data.parts import Array, Indices

Weights = npt.NDArray[np.float64]


def apportion(totals: Array, weights: Array, rng: np.random.Generator) -> Indices:
    """Each row's total as whole numbers in proportion to its weights, by largest remainder, ties at random.

    A row sums exactly to its total, and no number is further than one from its exact share.
    """
    sums = weights.sum(1, keepdims=True)
    exact = totals[:, None] * (weights / np.where(sums > 0, sums, 1))
    counts = np.floor(exact).astype(np.int64)
    # The noise decides ties, and those that rounding errors hide
    order = np.argsort(counts - exact + 1e-9 * rng.random(exact.shape), axis=1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(order.shape[1])[None], axis=1)
    return np.asarray(counts + (rank < (totals - counts.sum(1))[:, None]))


def deal(labels: Indices, counts: Indices, rng: np.random.Generator) -> list[Indices]:
    """Positions for each row of counts (owners × classes): so many of each class, at random, sorted.

    Where the counts of a class do not use it up, the rest goes to nobody.
    """
    owners = len(counts)
    owner = np.empty(len(labels), np.int64)
    for label, column in enumerate(counts.T):
        places = np.flatnonzero(labels == label)
        cards = np.repeat(np.arange(owners + 1), [*column, len(places) - column.sum()])
        owner[places] = rng.permutation(cards)
    ends = np.cumsum(np.bincount(owner, minlength=owners + 1))
    return np.split(np.argsort(owner, kind="stable"), ends[:owners])[:owners]


def dirichlet(mask: Array, alpha: float, rng: np.random.Generator) -> Weights:
    """One draw of Dirichlet(alpha) per row, over the row's True entries.

    Drawn as logarithms of gamma variates, log G(α) = log G(α+1) + log(U)/α: for a small α the variates
    themselves underflow to a row of zeros.
    """
    alpha = min(max(alpha, 1e-12), 1e12)  # beyond, nothing changes but the overflow
    logs = np.log(rng.standard_gamma(alpha + 1, mask.shape)) + np.log1p(-rng.random(mask.shape)) / alpha
    logs = np.where(mask, logs, -np.inf)
    top = logs.max(1, keepdims=True)
    weights = np.exp(logs - np.where(np.isfinite(top), top, 0))
    sums = weights.sum(1, keepdims=True)
    return np.asarray(weights / np.where(sums > 0, sums, 1))
