"""Something about test samples, as every client's own model sees them: a table in the folder of the run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedexperts.analyses.tables import read_table, write_table
from fedexperts.engine import Cohort, Simulation

KEYS = ("client", "class", "sample")


@dataclass(frozen=True)
class SampleTable:
    """A row is a sample of a client: its class, its position in the data set, and the values found for it."""

    clients: np.ndarray
    classes: np.ndarray
    samples: np.ndarray
    names: Sequence[str]
    values: np.ndarray  # rows × names

    @classmethod
    def of(
        cls, simulation: Simulation, samples: Mapping[int, np.ndarray], names: Sequence[str], values: np.ndarray
    ) -> "SampleTable":
        """The table of these clients' samples; `values` in the same order."""
        positions = np.concatenate(list(samples.values()))
        clients = np.repeat(list(samples), [len(own) for own in samples.values()])
        return cls(clients, simulation.task.dataset.labels[positions], positions, names, values)

    def save(self, path: Path) -> None:
        rows = zip(self.clients, self.classes, self.samples, self.values, strict=True)
        written = ([*where, *(f"{value:.6g}" for value in values)] for *where, values in rows)
        write_table(path, [*KEYS, *self.names], written)

    @classmethod
    def load(cls, folder: Path | None, name: str, kind: str) -> "SampleTable | None":
        """What an analysis has left in the folder of a run; None if it was never made."""
        found = read_table(folder, name, kind, KEYS)
        if found is None:
            return None
        header, table = found
        client, one_class, sample = table[:, :3].astype(np.int64).T
        return cls(client, one_class, sample, tuple(header[3:]), table[:, 3:])


def ask_clients(
    simulation: Simulation, function: Callable[..., Any], samples: Mapping[int, np.ndarray]
) -> list[np.ndarray]:
    """`function(model, x, received)` of each client's model, as it would be used now, for some samples of each."""
    found: dict[int, np.ndarray] = {}

    def asked(cohorts: list[Cohort]) -> dict[int, np.ndarray]:
        own = [[samples[client.id] for client in cohort.clients] for cohort in cohorts]
        return {
            client.id: answer[: len(samples[client.id])]
            for cohort, answers in zip(cohorts, simulation.ask(function, cohorts, own), strict=True)
            for client, answer in zip(cohort.clients, answers.double().cpu().numpy(), strict=True)
        }

    try:
        for wave in simulation.waves.each(list(samples), asked):
            found |= wave
    finally:
        simulation.executor.close()
    return [found[client] for client in samples]
