"""A task: a data set, who has which part of it, and which model each client runs."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedexperts.config import TaskSettings
from fedexperts.data import ClientData, Dataset, label_counts, load, partition, split
from fedexperts.errors import DataError
from fedexperts.models import Shape, check_model


@dataclass(frozen=True)
class ClientSpec:
    """What a method may know of a client. It needs no data set, so a remote site can make its own."""

    id: int
    model: str
    shape: Shape
    classes: int
    samples: int  # n_k: training samples


@dataclass(frozen=True)
class Task:
    """Build it with `Task.of(data="digits", clients=10, …)`."""

    settings: TaskSettings
    dataset: Dataset
    clients: tuple[ClientData, ...]

    @classmethod
    def of(cls, settings: TaskSettings | None = None, dataset: Dataset | None = None, **values: Any) -> "Task":
        """Load and split, from settings or from their fields by name; `dataset` is the whole set, if it is at hand."""
        settings = settings or TaskSettings.check(values)
        for name in (*settings.model, *filter(None, [settings.common_model])):
            check_model(name)
        dataset = dataset or load(settings.data, settings.data_dir, settings.download)
        if dataset.kind == "text":
            raise DataError(f"'{settings.data}' is text, and there is no model for text yet; use an image set")
        if settings.samples is not None:
            dataset = dataset.drawn(settings.samples, settings.seed)
        owned = partition(dataset.labels, dataset.classes, settings)
        return cls(settings, dataset, tuple(split(mine, dataset.labels, settings, k) for k, mine in enumerate(owned)))

    @property
    def shape(self) -> Shape:
        return tuple(self.dataset.inputs.shape[1:])

    @property
    def common_model(self) -> str:
        """The model of methods that need one for all clients."""
        return self.settings.common_model or self.settings.model[-1]

    @cached_property
    def counts(self) -> np.ndarray:
        """Clients × classes: who has how many samples of which label."""
        owned = [np.concatenate([c.train, c.validation, c.test]) for c in self.clients]
        return label_counts(owned, self.dataset.labels, self.dataset.classes)

    def spec(self, client: int, model: str | None = None) -> ClientSpec:
        """A client as methods see it, with its own model or a given one."""
        return ClientSpec(
            id=client,
            model=model or self.settings.model[client % len(self.settings.model)],
            shape=self.shape,
            classes=self.dataset.classes,
            samples=len(self.clients[client].train),
        )
