"""Of whose experts each client's experts are mixed: FedMoE-DA's aggregation matrix A (Eq. 8-10)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedexperts.analyses.tables import read_table, write_table
from fedexperts.engine import Simulation
from fedexperts.errors import MethodError
from fedexperts.measure import Record
from fedexperts.methods import method_class
from fedexperts.methods.fedmoe_da import FedMoEDA

MATRIX = "matrix.csv"
COLUMNS = ("client", "expert", "peer", "peer_expert", "weight")


@dataclass(frozen=True)
class Matrix:
    """Its entries that are not zero: an expert, one that it is mixed of (it may be itself), and the weight a_ij."""

    experts: np.ndarray  # entries × 2: client and number
    sources: np.ndarray  # entries × 2
    weights: np.ndarray

    def by_expert(self) -> tuple[np.ndarray, np.ndarray]:
        """All experts, as client and number, and experts × experts."""
        names = np.unique(self.experts, axis=0)
        at = {tuple(name): place for place, name in enumerate(names.tolist())}
        rows, columns = ([at[tuple(one)] for one in ends.tolist()] for ends in (self.experts, self.sources))
        matrix = np.zeros((len(names), len(names)))
        matrix[rows, columns] = self.weights
        return names, matrix

    def by_client(self, clients: int) -> np.ndarray:
        """Clients × clients: the part of a client's experts that is each client's, which is 1 in a row; nan if unknown.

        Weights are summed over the peer's experts and averaged over the client's own, of which clients may have
        different numbers.
        """
        sums = np.zeros((clients, clients))
        np.add.at(sums, (self.experts[:, 0], self.sources[:, 0]), self.weights)
        own = np.bincount(np.unique(self.experts, axis=0)[:, 0], minlength=clients)[:, None]
        means: np.ndarray = np.divide(sums, own, out=np.full_like(sums, np.nan), where=own > 0)
        return means

    def save(self, path: Path) -> None:
        rows = zip(self.experts.tolist(), self.sources.tolist(), self.weights.tolist(), strict=True)
        write_table(path, COLUMNS, ([*expert, *source, f"{weight:.6g}"] for expert, source, weight in rows))

    @classmethod
    def load(cls, folder: Path | None) -> "Matrix | None":
        """What `analyse matrix` has left in the folder of a run; None if it was never made."""
        found = read_table(folder, MATRIX, "matrix", COLUMNS)
        if found is None:
            return None
        table = found[1]
        return cls(table[:, :2].astype(np.int64), table[:, 2:4].astype(np.int64), table[:, 4])


def mixes(record: Record) -> bool:
    """Whether the run's server makes such a matrix."""
    return issubclass(method_class(record.settings.method), FedMoEDA)


def aggregation_matrix(simulation: Simulation) -> Matrix:
    """The last matrix that the server has made."""
    server, method = simulation.server, simulation.method
    clients = sorted(int(name.removeprefix("places.")) for name in server if name.startswith("places."))
    if not clients:
        raise MethodError(f"{method.title} ({method.name}) makes no aggregation matrix: it mixes no experts of peers")
    experts, sources, weights = [], [], []
    for client in clients:
        own = server[f"weights.{client}"].double().cpu().numpy()
        number, entry = np.nonzero(own)  # 0 is nobody
        experts.append(np.stack([np.full_like(number, client), number], axis=1))
        sources.append(server[f"places.{client}"].cpu().numpy()[number, entry])
        weights.append(own[number, entry])
    return Matrix(np.concatenate(experts), np.concatenate(sources), np.concatenate(weights))
