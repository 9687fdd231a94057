"""Every client under one method against the same client under another (FedMoE's Figure 4)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedexperts.config import TaskSettings
from fedexperts.errors import SettingsError
from fedexperts.measure import Kind, Record, task_of


@dataclass(frozen=True)
class Difference:
    """What each client gains, in points, by one run over another."""

    points: np.ndarray

    @classmethod
    def between(cls, accuracy: Sequence[float], reference: Sequence[float]) -> "Difference":
        return cls(np.round(100 * (np.array(accuracy) - np.array(reference)), 9) + 0.0)  # + 0.0: never -0.0

    @property
    def better(self) -> int:
        return int((self.points > 0).sum())

    @property
    def worse(self) -> int:
        return int((self.points < 0).sum())

    @property
    def equal(self) -> int:
        return len(self.points) - self.better - self.worse


def difference(record: Record, other: Record, kind: Kind = "selected") -> Difference:
    """The run's accuracies minus the other's, client by client; both must be about one task."""
    mine, theirs = task_of(record), task_of(other)
    if differing := [name for name in TaskSettings.model_fields if getattr(mine, name) != getattr(theirs, name)]:
        raise SettingsError(
            f"clients can be compared on one task only; {record.title} and {other.title} differ in "
            f"{', '.join(differing)}"
        )
    return Difference.between(record.figures[kind].clients, other.figures[kind].clients)
