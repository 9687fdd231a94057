"""Who fetched from whom, and how often."""

from dataclasses import dataclass

import numpy as np

from fedexperts.errors import SavedStateError
from fedexperts.measure import FETCH_COLUMNS, FETCHES, Record


@dataclass(frozen=True)
class Fetched:
    """Clients × clients: how often the first fetched something from the second; and in which rounds."""

    counts: np.ndarray
    first: int
    last: int

    def pairs(self) -> list[tuple[int, int, int]]:
        """Two clients and how often either fetched from the other, the most frequent first."""
        both = self.counts + self.counts.T
        one, other = np.nonzero(np.triu(both, 1))
        order = np.argsort(-both[one, other], kind="stable")
        return [(int(one[k]), int(other[k]), int(both[one[k], other[k]])) for k in order]


def fetched(record: Record) -> Fetched | None:
    """From the run's folder; None if nobody fetched anything."""
    if record.folder is None or not (record.folder / FETCHES).exists():
        return None
    path, clients = record.folder / FETCHES, len(record.counts)
    try:
        with open(path, encoding="utf-8") as file:
            header, *rows = file.read().splitlines()
        table = np.loadtxt(rows, dtype=np.int64, delimiter=",", usecols=(0, 1, 2), ndmin=2) if rows else None
    except ValueError:
        header, table = "", None
    if header != ",".join(FETCH_COLUMNS) or table is None or table.min() < 0 or table[:, 1:].max() >= clients:
        raise SavedStateError(
            f"{path} is cut off or changed: it does not have the columns {', '.join(FETCH_COLUMNS)} and clients of the "
            "run in every row; remove it to see the run without it"
        )
    rounds, client, peer = table.T
    counts = np.zeros((clients, clients), dtype=np.int64)
    np.add.at(counts, (client, peer), 1)
    return Fetched(counts, int(rounds.min()), int(rounds.max()))
