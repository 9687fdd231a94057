"""The data on the device, and which samples a client sees in which step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedexperts.data import ClientData, Dataset
from fedexperts.engine.phases import phase
from fedexperts.randomness import stream


@dataclass(frozen=True)
class DeviceData:
    """A whole set on the device: images as uint8, channels last, turned into numbers in [-1, 1] only batch by batch.

    Texts as numbers of words, a table's rows with their columns on one scale.
    """

    inputs: Tensor
    labels: Tensor
    dtype: torch.dtype = torch.float32  # of what models get

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device, dtype: torch.dtype) -> "DeviceData":
        inputs = torch.from_numpy(dataset.form.scaled(dataset.inputs))
        return cls(
            inputs=(inputs.movedim(1, -1).contiguous() if dataset.kind == "image" else inputs).to(device),
            labels=torch.from_numpy(dataset.labels).to(device),
            dtype=dtype,
        )

    def x(self, index: Tensor) -> Tensor:
        """Samples as models take them: … × channels × height × width, … × words, or … × values."""
        found = scaled(self.inputs[index], self.dtype)
        return found.movedim(-1, -3) if self.inputs.dtype == torch.uint8 else found

    def y(self, index: Tensor) -> Tensor:
        return self.labels[index]


def scaled(inputs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images: uint8 → [-1, 1], the same for every client: nothing about anybody's data is needed. The rest stays."""
    if inputs.dtype == torch.uint8:
        return inputs.to(dtype).div_(127.5).sub_(1.0)
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def width(samples: int, batch_size: int) -> int:
    """Samples in each of a client's batches."""
    return min(samples, batch_size)


Share = tuple[float, float]
WHOLE: Share = (0.0, 1.0)


class Portion(NamedTuple):
    """How much of a client's data a stage sees: epochs, from where to where, and samples in an epoch at most."""

    epochs: int
    share: Share = WHOLE
    samples: int | None = None


def batch_order(
    train: np.ndarray, size: int, epochs: int, rng: np.random.Generator, samples: int | None = None
) -> np.ndarray:
    """Steps × size: the samples of each step.

    An epoch is a fresh permutation cut into batches. A last batch that is not full is completed with samples from
    the epoch's beginning: every sample is seen, every batch has the same width (so that clients can be stacked, and
    BatchNorm never meets a batch of one). With `samples`, an epoch ends with the batch that has brought so many.
    """
    per_epoch = math.ceil(len(train) / size)
    last = per_epoch if samples is None else min(per_epoch, math.ceil(samples / size))
    epochs_of = [np.resize(rng.permutation(train), (per_epoch, size))[:last] for _ in range(epochs)]
    return np.concatenate(epochs_of)


DataAt = Callable[[int], Sequence[ClientData] | Mapping[int, ClientData]]
"""Round → who has which samples."""


class BatchPlan:
    """Who sees which samples when. A round's plan can be made before it is needed; that changes nothing in it."""

    def __init__(self, data: DataAt, batch_size: int, seed: int) -> None:
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self._last: dict[int, Portion] = {}  # stage → what was last asked for
        self._ready: dict[tuple[int, int, int, Portion], np.ndarray] = {}

    def take(self, client: int, round_number: int, stage: int, portion: Portion) -> np.ndarray:
        """Steps × width: the samples of a client's stage."""
        self._last[stage] = portion
        ready = self._ready.pop((client, round_number, stage, portion), None)
        return self._make(client, round_number, stage, portion) if ready is None else ready

    @phase("data")
    def prepare(self, clients: Sequence[int], round_number: int) -> None:
        """Make the plan of a round to come."""
        self._ready = {
            (client, round_number, stage, portion): self._make(client, round_number, stage, portion)
            for client in clients
            for stage, portion in self._last.items()
        }

    def _make(self, client: int, round_number: int, stage: int, portion: Portion) -> np.ndarray:
        train = self.data(round_number)[client].train
        size = width(len(train), self.batch_size)  # of a share too, so that clients stay stackable in every stage
        if portion.share != WHOLE:
            (first, end), there = portion.share, len(train)
            count = there - round(first * there) if end == 1 else round((end - first) * there)
            count = max(1, count)  # who has more samples never gets fewer of them, as a stack needs it
            start = min(round(first * there), there - count)
            train = stream(self.seed, "shares", client).permutation(train)[start : start + count]
        rng = stream(self.seed, "batches", client, round_number, stage)
        return batch_order(train, size, portion.epochs, rng, portion.samples)
