"""The data on the device, and which samples a client sees in which step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedexperts.data import Dataset
from fedexperts.randomness import stream


@dataclass(frozen=True)
class DeviceData:
    """A whole set on the device: images as uint8, channels last, turned into numbers in [-1, 1] only batch by batch."""

    inputs: Tensor
    labels: Tensor
    dtype: torch.dtype = torch.float32  # of what models get

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device, dtype: torch.dtype) -> "DeviceData":
        return cls(
            inputs=torch.from_numpy(dataset.inputs).movedim(1, -1).contiguous().to(device),
            labels=torch.from_numpy(dataset.labels).to(device),
            dtype=dtype,
        )

    def x(self, index: Tensor) -> Tensor:
        """Images as models take them: … × channels × height × width."""
        return scaled(self.inputs[index], self.dtype).movedim(-1, -3)

    def y(self, index: Tensor) -> Tensor:
        return self.labels[index]


def scaled(inputs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 → [-1, 1]. The same for every client: nothing about anybody's data is needed."""
    return inputs.to(dtype).div_(127.5).sub_(1.0)


def width(samples: int, batch_size: int) -> int:
    """Samples in each of a client's batches."""
    return min(samples, batch_size)


def batch_order(train: np.ndarray, batch_size: int, epochs: int, rng: np.random.Generator) -> np.ndarray:
    """Steps × width: the samples of each step.

    An epoch is a fresh permutation cut into batches. A last batch that is not full is completed with samples from
    the epoch's beginning: every sample is seen, every batch has the same width (so that clients can be stacked, and
    BatchNorm never meets a batch of one).
    """
    size = width(len(train), batch_size)
    per_epoch = math.ceil(len(train) / size)
    epochs_of = [np.resize(rng.permutation(train), (per_epoch, size)) for _ in range(epochs)]
    return np.concatenate(epochs_of)


class BatchPlan:
    """Who sees which samples when. A round's plan can be made before it is needed; that changes nothing in it."""

    def __init__(self, train: Sequence[np.ndarray], batch_size: int, seed: int) -> None:
        self.train = train
        self.batch_size = batch_size
        self.seed = seed
        self._last: dict[int, int] = {}  # stage → epochs, as last asked for
        self._ready: dict[tuple[int, int, int, int], np.ndarray] = {}

    def take(self, client: int, round_number: int, stage: int, epochs: int) -> np.ndarray:
        """Steps × width: the samples of a client's stage."""
        self._last[stage] = epochs
        ready = self._ready.pop((client, round_number, stage, epochs), None)
        return self._make(client, round_number, stage, epochs) if ready is None else ready

    def prepare(self, clients: Sequence[int], round_number: int) -> None:
        """Make the plan of a round to come."""
        self._ready = {
            (client, round_number, stage, epochs): self._make(client, round_number, stage, epochs)
            for client in clients
            for stage, epochs in self._last.items()
        }

    def _make(self, client: int, round_number: int, stage: int, epochs: int) -> np.ndarray:
        rng = stream(self.seed, "batches", client, round_number, stage)
        return batch_order(self.train[client], self.batch_size, epochs, rng)
