"""Which expert is chosen for samples of which class."""

import numpy as np

from fedexperts.analyses.samples import SampleTable


def times_chosen(table: SampleTable, clients: int, classes: int) -> np.ndarray:
    """Clients × experts × classes: for how many test samples the expert has the largest weight."""
    chosen = np.zeros((clients, len(table.names), classes))
    np.add.at(chosen, (table.clients, table.values.argmax(axis=1), table.classes), 1)
    return chosen


def shares_chosen(chosen: np.ndarray) -> np.ndarray:
    """… × experts × classes: the part of a class's samples that is the expert's; nan for a class without samples."""
    total = chosen.sum(axis=-2, keepdims=True)
    shares: np.ndarray = np.divide(chosen, total, out=np.full_like(chosen, np.nan), where=total > 0)
    return shares


def agreement(chosen: np.ndarray) -> float:
    """The part of all samples that go where most of their class go: 1 if an expert is a matter of the class alone."""
    return float(chosen.max(axis=-2).sum() / chosen.sum())
