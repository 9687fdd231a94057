"""The scales of a table's columns, which differ by orders of magnitude; models get all of them alike."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedexperts.data.parts import Array


@dataclass(frozen=True)
class Sums:
    """What a client adds to everybody's, column by column: from this the scale follows, and no row does."""

    count: int
    total: Array
    squares: Array

    @classmethod
    def of(cls, rows: Array) -> "Sums":
        exact = rows.astype(np.float64)
        return cls(len(rows), exact.sum(0), np.square(exact).sum(0))


@dataclass(frozen=True)
class Scale:
    """Each column's mean and spread (standard deviation), over all clients' training data."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    @classmethod
    def of(cls, clients: Iterable[Sums]) -> "Scale":
        every = list(clients)
        count = sum(one.count for one in every)
        mean = np.sum([one.total for one in every], axis=0) / count
        variance = np.sum([one.squares for one in every], axis=0) / count - np.square(mean)
        spread = np.sqrt(np.maximum(variance, 0))
        told = spread > 1e-6 * np.abs(mean)  # what is left of a column that never changes is rounding
        return cls(tuple(mean.tolist()), tuple(np.where(told & (spread > 0), spread, 1.0).tolist()))

    def apply(self, rows: Array) -> Array:
        """(row − mean) / spread, as float32."""
        scaled: Array = (rows - np.array(self.mean)) / np.array(self.spread)
        return scaled.astype(np.float32)
