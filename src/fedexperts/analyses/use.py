"""Which clients use which sub-expert of FedEMoE's shared expert."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedexperts.analyses.samples import ask_clients
from fedexperts.analyses.tables import read_table, write_table
from fedexperts.engine import Simulation
from fedexperts.errors import MethodError
from fedexperts.methods import Model, State
from fedexperts.methods.fedemoe import FedEMoE
from fedexperts.methods.growth import Tree

USE = "use.csv"


@dataclass(frozen=True)
class Use:
    """Parts of a client's test samples, by its final model."""

    leaves: list[int]  # the numbers of the sub-experts
    asked: np.ndarray  # clients: for which the shared expert is among the best K
    used: np.ndarray  # clients × sub-experts: for which, then, this one is asked

    @property
    def mix(self) -> np.ndarray:
        """Clients × sub-experts: each row makes 1; nan for a client that never asks."""
        total = self.used.sum(axis=1, keepdims=True)
        mix: np.ndarray = np.divide(self.used, total, out=np.full_like(self.used, np.nan), where=total > 0)
        return mix

    def shared(self, dominant: np.ndarray) -> tuple[float | None, float | None]:
        """How much of what they use two clients have in common, Σ_j min(u_i(j), u_k(j)), the mean over pairs.

        Of pairs with the same most frequent class, and of all others; None where there is no such pair.
        """
        known = ~np.isnan(self.mix).any(axis=1)
        mix, classes = self.mix[known], dominant[known]
        one, other = np.triu_indices(len(mix), 1)
        common = np.minimum(mix[one], mix[other]).sum(axis=1)
        alike = classes[one] == classes[other]
        same, different = (float(common[who].mean()) if who.any() else None for who in (alike, ~alike))
        return same, different

    def save(self, path: Path) -> None:
        rows = enumerate(np.column_stack([self.asked, self.used]).tolist())
        written = ([client, *(f"{value:.6g}" for value in values)] for client, values in rows)
        write_table(path, ["client", "asked", *map(str, self.leaves)], written)

    @classmethod
    def load(cls, folder: Path | None) -> "Use | None":
        """What `analyse use` has left in the folder of a run; None if it was never made."""
        found = read_table(folder, USE, "use", ("client", "asked"))
        if found is None:
            return None
        header, table = found
        return cls([int(name) for name in header[2:]], table[:, 1], table[:, 2:])


def use(simulation: Simulation) -> Use:
    """From the models as they are now, on all test data."""
    method = simulation.method
    if not isinstance(method, FedEMoE):
        raise MethodError(f"{method.title} ({method.name}) has no shared expert that is made of others")
    leaves = list(Tree.of(simulation.server).paths)

    def look(model: Model, x: Tensor, received: State) -> Tensor:
        features = model.extractor(x)
        asked = model.gate(features)[:, -1:] > 0
        weights = model.shared_expert.weights(features.flatten(1))[:, leaves]
        return torch.cat([asked, asked & (weights > 0)], dim=1).to(weights)

    tests = {client: own.test for client, own in enumerate(simulation.task.clients)}
    means = np.stack([answer.mean(axis=0) for answer in ask_clients(simulation, look, tests)])
    return Use(leaves, means[:, 0], means[:, 1:])
