"""Which expert is chosen for samples of which class."""

import numpy as np

from fedexperts.analyses.samples import SampleTable


def shares_chosen(table: SampleTable, classes: int, client: int | None = None) -> np.ndarray:
    """Experts × classes: the part of a class's samples for which the expert has the largest weight; nan without any.

    Of all clients' samples together, or of one client's: experts are taken for the same if their numbers are.
    """
    mine = np.full(len(table.clients), True) if client is None else table.clients == client
    chosen = np.zeros((len(table.names), classes))
    np.add.at(chosen, (table.values[mine].argmax(axis=1), table.classes[mine]), 1)
    total = chosen.sum(axis=0)
    shares: np.ndarray = np.divide(chosen, total, out=np.full_like(chosen, np.nan), where=total > 0)
    return shares
