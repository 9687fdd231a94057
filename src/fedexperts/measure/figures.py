"""The three honest figures of a run: last, selected on validation data, and peak on test data."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Literal

import numpy as np

from fedexperts.measure.history import Row
from fedexperts.methods import Channel

Kind = Literal["last", "selected", "peak"]

MEANING: dict[Kind, str] = {
    "last": "after the last round",
    "selected": "in the round that was best on validation data: what may be claimed",
    "peak": "best test score over the rounds: what the papers print",
}


@dataclass(frozen=True)
class Figure:
    """Test accuracy of all clients in one round."""

    round: int
    mean: float  # over clients
    weighted: float  # by test samples
    std: float  # over clients
    worst_tenth: float  # mean of the worst 10 % of the clients
    clients: tuple[float, ...]

    def over(self, samples: bool = False) -> float:
        """The mean over clients, or over their test samples."""
        return self.weighted if samples else self.mean

    @classmethod
    def of(cls, round_number: int, accuracy: np.ndarray, samples: np.ndarray) -> "Figure":
        """From every client's accuracy and number of test samples."""
        worst = np.sort(accuracy)[: ceil(len(accuracy) / 10)]
        return cls(
            round=round_number,
            mean=float(accuracy.mean()),
            weighted=float(np.average(accuracy, weights=samples)),
            std=float(accuracy.std()),
            worst_tenth=float(worst.mean()),
            clients=tuple(accuracy.tolist()),
        )


@dataclass(frozen=True)
class Curve:
    """All evaluated rounds: rounds × clients."""

    rounds: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    test_samples: np.ndarray

    def weights(self, samples: bool = False) -> np.ndarray | None:
        """Of the clients in a mean, if they do not all count alike."""
        return self.test_samples if samples else None

    def means(self, samples: bool = False) -> np.ndarray:
        """Mean test accuracy of each round, over clients or over their test samples."""
        means: np.ndarray = np.average(self.test, axis=1, weights=self.weights(samples))
        return means

    def spreads(self, samples: bool = False) -> np.ndarray:
        """Standard deviation of each round's test accuracy, over clients or over their test samples."""
        apart = (self.test - self.means(samples)[:, None]) ** 2
        spreads: np.ndarray = np.sqrt(np.average(apart, axis=1, weights=self.weights(samples)))
        return spreads

    def figures(self, by_samples: bool = False, beforehand: int = 0) -> dict[Kind, Figure]:
        """In the best rounds by the plain mean over clients, or by the mean in which larger ones count more.

        The first rounds, `beforehand`, only count where there are no others.
        """
        weights = self.weights(by_samples)
        later = np.flatnonzero(self.rounds > beforehand)
        places = later if len(later) else np.arange(len(self.rounds))
        return {
            "last": self.figure(int(places[-1])),
            "selected": self.figure(int(places[best_round(self.validation[places], weights)])),
            "peak": self.figure(int(places[best_round(self.test[places], weights)])),
        }

    def validation_of(self, client: int) -> dict[int, float]:
        """One client's accuracy on validation data, by rounds."""
        return dict(zip(self.rounds.tolist(), self.validation[:, client].tolist(), strict=True))

    def figure(self, position: int) -> Figure:
        return Figure.of(int(self.rounds[position]), self.test[position], self.test_samples)


def best_round(accuracy: np.ndarray, weights: np.ndarray | None = None) -> int:
    """Of rounds × clients, the round with the best mean; of several equal ones the last, which has trained the most."""
    means = np.average(accuracy, axis=1, weights=weights)
    return int(np.flatnonzero(means >= means.max() - 1e-12)[-1])


def curve(rows: Sequence[Row]) -> Curve:
    """The evaluated rounds of a history, from the first one on in which every client has been.

    A client that is missing in one (a site of a federation that was away) counts as it last was.
    """
    evaluated = [row for row in rows if row["test_accuracy"] is not None]
    rounds, position = np.unique([row["round"] for row in evaluated], return_inverse=True)
    clients, who = np.unique([row["client"] for row in evaluated], return_inverse=True)
    columns = {}
    for name in ("validation_accuracy", "test_accuracy", "test_samples"):
        table = np.full((len(rounds), len(clients)), np.nan)
        table[position, who] = [row[name] for row in evaluated]
        for before, after in pairwise(table) if np.isnan(table).any() else ():
            np.copyto(after, before, where=np.isnan(after))
        columns[name] = table
    whole = ~np.isnan(columns["test_accuracy"]).any(1)
    validation, test, samples = (table[whole] for table in columns.values())
    return Curve(rounds[whole].astype(int), validation, test, samples[0])


def totals(rows: Sequence[Row]) -> dict[str, int]:
    """Bytes and parameters by channel, and FLOPs, over the whole run and all clients."""
    names = [f"{channel}_{what}" for channel in Channel for what in ("parameters", "bytes")] + ["flops"]
    return {name: int(sum(row[name] or 0 for row in rows)) for name in names}
