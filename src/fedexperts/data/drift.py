"""Data whose distribution moves: a client's class mix changes over the rounds, on a schedule."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedexperts.config import DriftName
from fedexperts.data.clients import ClientData
from fedexperts.data.parts import Indices
from fedexperts.randomness import stream


def position(drift: DriftName, round_number: int, rounds: int, phases: int) -> tuple[int, float]:
    """Which phase it is, from 0, and how far the next one has come in: 0 … 1.

    Sudden: each phase lasts equally long, then the next one is there at once. Gradual: from the first round to the
    last the mix moves evenly from the first phase through all others to the last.
    """
    if drift == "sudden":
        return (round_number - 1) * phases // rounds, 0.0
    way = (round_number - 1) / max(rounds - 1, 1) * (phases - 1)
    return min(int(way), phases - 2), way - min(int(way), phases - 2)


def aligned(phases: Sequence[Sequence[ClientData]], seed: int) -> list[tuple[ClientData, ...]]:
    """The same phases, each client's data of one size in all of them and in random order.

    A client then never has more or less data than before, only other data: what changes is the mix.
    """
    sizes = [np.array([_sizes(phase[k]) for phase in phases]).min(0) for k in range(len(phases[0]))]
    return [
        tuple(_shuffled(client, sizes[k], stream(seed, "drift", k, number)) for k, client in enumerate(phase))
        for number, phase in enumerate(phases)
    ]


def between(old: ClientData, new: ClientData, share: float) -> ClientData:
    """A client on its way from one phase to the next: that share of its samples is new, as many old ones are gone."""
    return ClientData(*(_between(*pair, share) for pair in zip(_parts(old), _parts(new), strict=True)))


class Moving(Sequence[ClientData]):
    """All clients `between` two phases; each is looked at when it is asked for, as most are not in a round."""

    def __init__(self, old: Sequence[ClientData], new: Sequence[ClientData], share: float) -> None:
        self.old = old
        self.new = new
        self.share = share

    def __len__(self) -> int:
        return len(self.old)

    def __getitem__(self, client: Any) -> Any:
        return between(self.old[client], self.new[client], self.share)


def _between(old: Indices, new: Indices, share: float) -> Indices:
    come = round(share * len(old))
    return np.concatenate([new[:come], old[come:]])


def _parts(client: ClientData) -> tuple[Indices, Indices, Indices]:
    return client.train, client.validation, client.test


def _sizes(client: ClientData) -> list[int]:
    return [len(part) for part in _parts(client)]


def _shuffled(client: ClientData, sizes: np.ndarray, rng: np.random.Generator) -> ClientData:
    return ClientData(*(rng.permutation(part)[:size] for part, size in zip(_parts(client), sizes, strict=True)))
