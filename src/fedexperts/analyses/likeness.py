"""Whether clients deal with those who have data like theirs: each is known by its most frequent class."""

from typing import NamedTuple

import numpy as np


class Likeness(NamedTuple):
    """The part that goes between clients with the same most frequent class, and what it would be by chance."""

    found: float
    by_chance: float  # if every client dealt with all others alike


def dominant_classes(counts: np.ndarray) -> np.ndarray:
    """Each client's most frequent class; of equally frequent ones the first."""
    dominant: np.ndarray = counts.argmax(axis=1)
    return dominant


def overlap(counts: np.ndarray) -> np.ndarray:
    """How much of its label mix each client shares with the others: Σ_c min(p_i(c), p_j(c)), the mean over j ≠ i."""
    mixes = counts / counts.sum(axis=1, keepdims=True)
    shared = np.array([np.minimum(own, mixes).sum() - 1 for own in mixes])  # with itself it shares all
    return shared / max(len(mixes) - 1, 1)


def likeness(dealings: np.ndarray, dominant: np.ndarray) -> Likeness | None:
    """Of clients × clients, how much each has to do with each; None if nobody has to do with another."""
    others = ~np.eye(len(dominant), dtype=bool)
    alike = (dominant[:, None] == dominant) & others
    with_others = np.where(others, np.nan_to_num(dealings), 0)
    total = with_others.sum()
    if total == 0:
        return None
    by_chance = with_others.sum(axis=1) @ alike.mean(axis=1) * len(dominant) / (len(dominant) - 1)
    return Likeness(float(with_others[alike].sum() / total), float(by_chance / total))
