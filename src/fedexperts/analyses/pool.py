"""Which of the pool's modules a client uses, which ones denoising removes, and how often each of them is right."""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedexperts.analyses.samples import ask_clients
from fedexperts.analyses.tables import read_table, write_table
from fedexperts.engine import Simulation
from fedexperts.errors import MethodError
from fedexperts.methods import Model, State
from fedexperts.methods.pm_moe import Answers, PMMoE

POOL = "pool.csv"


@dataclass(frozen=True)
class Pool:
    """Clients × modules, each a mean over the client's test samples; nan where it does not have the module."""

    samples: np.ndarray  # how many those are
    weight: np.ndarray  # what the gate gives the module
    confidence: np.ndarray  # H^k (Eq. 12)
    removed: np.ndarray  # how often it is taken for noise
    right: np.ndarray  # how often it is right in the place of the client's own
    weight_right: np.ndarray  # its weight where it is right, 0 elsewhere
    removed_right: np.ndarray  # how often it is removed and right
    right_together: np.ndarray  # the part of the client's modules that is right where it is, 0 elsewhere

    @property
    def has(self) -> np.ndarray:
        """Clients × modules: who has which."""
        known: np.ndarray = ~np.isnan(self.samples)
        return known

    @property
    def others(self) -> np.ndarray:
        """Clients × modules: the modules that a client has of others."""
        own: np.ndarray = self.has & ~np.eye(len(self.samples), dtype=bool)
        return own

    def mean(self, values: np.ndarray, where: np.ndarray | None = None) -> float:
        """Over all test samples and, for each, all modules that its client has, or some of them."""
        at = self.has if where is None else where
        return float(np.average(values[at], weights=self.samples[at])) if at.any() else np.nan

    def of(self, client: int) -> "Pool":
        """What one client has; the others have nothing."""
        mine = np.arange(len(self.samples)) == client
        return Pool(*(np.where(mine[:, None], getattr(self, field.name), np.nan) for field in fields(self)))

    def save(self, path: Path) -> None:
        header = ["client", "module", *(field.name for field in fields(self))]
        values = np.stack([getattr(self, field.name) for field in fields(self)], axis=2)
        places = np.argwhere(self.has).tolist()
        write_table(path, header, ([*place, *(f"{value:.6g}" for value in values[*place])] for place in places))

    @classmethod
    def load(cls, folder: Path | None, clients: int) -> "Pool | None":
        """What `analyse pool` has left in the folder of a run; None if it was never made."""
        found = read_table(folder, POOL, "pool", ("client", "module", *(field.name for field in fields(cls))))
        if found is None:
            return None
        table = found[1]
        whole = np.full((len(fields(cls)), clients, clients), np.nan)
        whole[:, *table[:, :2].astype(np.int64).T] = table[:, 2:].T
        return cls(*whole)


def pool_use(simulation: Simulation) -> Pool:
    """From the models as they are now, on all test data."""
    method = simulation.method
    if not isinstance(method, PMMoE):
        raise MethodError(f"{method.title} ({method.name}) pools no modules")

    def look(model: Model, x: Tensor, received: State) -> Tensor:
        """Samples × four values for each module: weight, confidence, whether removed, predicted class."""
        answers, predicted = _ask(method, model, x, received)
        own = model.gate.own[:, None].to(answers.weights).expand_as(answers.weights)
        weights = torch.where(model.gate.learned, answers.weights, own)
        found = (weights, answers.confidence, answers.removed, predicted)
        return torch.cat([one.double() for one in found]).T

    tests = {client: own.test for client, own in enumerate(simulation.task.clients)}
    labels, present = simulation.task.dataset.labels, simulation.server["present.modules"].cpu().numpy()
    answers = ask_clients(simulation, look, tests)
    has = present | np.eye(len(tests), dtype=bool)
    rows = [_row(answers[client], labels[test], has[client]) for client, test in tests.items()]
    return Pool(*np.stack(rows, axis=1))


def _ask(method: PMMoE, model: Model, x: Tensor, received: State) -> tuple[Answers, Tensor]:
    """What the pool says of the samples, and the class that each module would make of them: modules × samples."""
    heard: list[Answers] = []

    def listen(z: Tensor) -> Tensor:
        heard.append(method.answers(model, z, received))
        return heard[0].each[0]

    method.with_module(model, x, listen)
    each = vmap(lambda said: method.with_module(model, x, lambda z: said).argmax(1))(heard[0].each)
    return heard[0], each


def _row(values: np.ndarray, labels: np.ndarray, has: np.ndarray) -> np.ndarray:
    """A client's row in every table of a `Pool`."""
    weight, confidence, removed, predicted = np.split(values, 4, axis=1)
    right = predicted == labels[:, None]
    together = right[:, has].mean(axis=1, keepdims=True)
    means = [weight, confidence, removed, right, weight * right, removed * right, together * right]
    row = np.stack([np.full(len(has), len(labels)), *(one.mean(axis=0) for one in means)])
    return np.where(has, row, np.nan)
