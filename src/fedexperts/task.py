"""A task: a data set, who has which part of it, and which model each client runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedexperts.config import TaskSettings
from fedexperts.data import (
    ClientData,
    Dataset,
    aligned,
    between,
    is_text,
    label_counts,
    load,
    partition,
    position,
    split,
)  # fmt: skip
from fedexperts.errors import DataError
from fedexperts.models import TEXT_MODELS, Shape, check_model


@dataclass(frozen=True)
class ClientSpec:
    """What a method may know of a client. It needs no data set, so a remote site can make its own."""

    id: int
    model: str
    shape: Shape
    classes: int
    samples: int  # n_k: training samples
    label_counts: tuple[int, ...] = ()  # training samples of each class; the client's own affair: not for the server
    clients: int = 1  # N: all there are

    @property
    def public(self) -> "ClientSpec":
        """The client as the server knows it."""
        return replace(self, label_counts=())


@dataclass(frozen=True)
class Task:
    """Build it with `Task.of(data="digits", clients=10, …)`."""

    settings: TaskSettings
    dataset: Dataset
    clients: tuple[ClientData, ...]  # as they are in the first round
    later: tuple[tuple[ClientData, ...], ...] = ()  # under drift: the phases that follow, with data of the same sizes

    @classmethod
    def of(cls, settings: TaskSettings | None = None, dataset: Dataset | None = None, **values: Any) -> "Task":
        """Load and split, from settings or from their fields by name; `dataset` is the whole set, if it is at hand."""
        settings = settings or TaskSettings.check(with_model(values, dataset))
        names = (*settings.model, *filter(None, [settings.common_model]))
        for name in names:
            check_model(name)
        dataset = dataset or load(settings.data, settings.data_dir, settings.download)
        if dataset.kind == "words":
            raise DataError(
                f"'{dataset.name}' is numbers of words already; give the texts: which words are known follows from who "
                "trains on which of them"
            )
        if settings.samples is not None:
            dataset = dataset.drawn(settings.samples, settings.seed)
        clients, *later = _phases(dataset, settings)
        if dataset.kind == "text":
            training = np.concatenate([client.train for client in clients])
            dataset = dataset.in_words(training, settings.vocabulary, settings.text_length)
        for name in names:
            check_model(name, dataset.shape)
        return cls(settings, dataset, clients, tuple(later))

    @property
    def phases(self) -> tuple[tuple[ClientData, ...], ...]:
        return (self.clients, *self.later)

    def at(self, round_number: int, rounds: int) -> Sequence[ClientData]:
        """Who has which data in a round."""
        if not self.later:
            return self.clients
        phase, share = position(self.settings.drift, round_number, rounds, len(self.phases))
        if not share:
            return self.phases[phase]
        both = zip(self.phases[phase], self.phases[phase + 1], strict=True)
        return [between(old, new, share) for old, new in both]

    @property
    def shape(self) -> Shape:
        return self.dataset.shape

    @property
    def common_model(self) -> str:
        """The model of methods that need one for all clients."""
        return self.settings.common_model or self.settings.model[-1]

    @cached_property
    def counts(self) -> np.ndarray:
        """Clients × classes: who has how many samples of which label, in all phases together."""
        owned = [
            np.concatenate([part for c in phases for part in (c.train, c.validation, c.test)])
            for phases in zip(*self.phases, strict=True)
        ]
        return label_counts(owned, self.dataset.labels, self.dataset.classes)

    def spec(self, client: int, model: str | None = None) -> ClientSpec:
        """A client as methods see it, with its own model or a given one; its labels are those of the first round."""
        train = self.clients[client].train
        [counts] = label_counts([train], self.dataset.labels, self.dataset.classes)
        return ClientSpec(
            id=client,
            model=model or self.settings.model[client % len(self.settings.model)],
            shape=self.shape,
            classes=self.dataset.classes,
            samples=len(train),
            clients=len(self.clients),
            label_counts=tuple(counts.tolist()),
        )


def with_model(values: Mapping[str, Any], dataset: Dataset | None = None) -> dict[str, Any]:
    """Settings by name, with a model for texts where they name none and the data, or their name, say that it is texts.

    Settings have one for images by themselves.
    """
    name = values.get("data")
    of_texts = dataset.kind == "text" if dataset else isinstance(name, str) and is_text(name)
    return {**values, "model": next(iter(TEXT_MODELS))} if of_texts and "model" not in values else dict(values)


def _phases(dataset: Dataset, settings: TaskSettings) -> Sequence[tuple[ClientData, ...]]:
    """Who has which samples, in one phase after another; without drift there is one."""
    if settings.drift == "none":
        return [tuple(_split_up(dataset, settings))]
    # A client's phases are so many clients of one partition, one after another.
    places = settings.model_copy(update={"clients": settings.clients * settings.phases})
    try:
        parts = list(_split_up(dataset, places))
    except DataError as error:
        of = f"{settings.clients} clients × {settings.phases} phases of drift"
        raise DataError(f"{of} are a partition for {places.clients} clients, and {error}") from None
    phases = [parts[first : first + settings.clients] for first in range(0, len(parts), settings.clients)]
    return aligned(phases, settings.seed)


def _split_up(dataset: Dataset, settings: TaskSettings) -> Iterator[ClientData]:
    """Every client's samples, for training, validation and testing."""
    for client, owned in enumerate(partition(dataset.labels, dataset.classes, settings)):
        yield split(owned, dataset.labels, settings, client)
