"""A task: a data set, who has which part of it, and which model each client runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedexperts.client import Client, check, together
from fedexperts.config import TaskSettings
from fedexperts.data import (
    ClientData,
    Dataset,
    Moving,
    aligned,
    clients_in,
    is_folder,
    label_counts,
    load,
    partition,
    position,
    split,
)  # fmt: skip
from fedexperts.errors import DataError, suggestion
from fedexperts.given import with_model
from fedexperts.models import ModelRef, ModelSource, Shape, check_model, model_ref, told_apart


@dataclass(frozen=True)
class ClientSpec:
    """What a method may know of a client. It needs no data set, so a remote site can make its own."""

    id: int
    model: ModelRef
    shape: Shape
    classes: int
    samples: int  # n_k: training samples
    label_counts: tuple[int, ...] = ()  # training samples of each class; the client's own affair: not for the server
    clients: int = 1  # N: all there are
    name: str = ""  # where it has one beside its number
    common: ModelRef | None = None  # the model that was chosen for what all clients share, if one was

    @property
    def called(self) -> str:
        """For people: "client 3", "client north"."""
        return f"client {self.name or self.id}"

    @property
    def public(self) -> "ClientSpec":
        """The client as the server knows it."""
        return replace(self, label_counts=())


@dataclass(frozen=True)
class Task:
    """Build it with `Task.of(data="digits", clients=10, …)`, or with `Task.of_clients([Client(…), …])`."""

    settings: TaskSettings
    dataset: Dataset
    clients: tuple[ClientData, ...]  # as they are in the first round
    later: tuple[tuple[ClientData, ...], ...] = ()  # under drift: the phases that follow, with data of the same sizes
    names: tuple[str, ...] = ()  # the clients', where they are not just numbers
    models: tuple[ModelRef, ...] = ()  # in turn, where they are not just the settings' names
    common: ModelRef | None = None  # likewise, in place of `settings.common_model`

    @classmethod
    def of(cls, settings: TaskSettings | None = None, dataset: Dataset | None = None, **values: Any) -> "Task":
        """Load and split, from settings or from their fields by name; `dataset` is the whole set, if it is at hand."""
        settings = settings or TaskSettings.check(with_model(values, dataset))
        if dataset is None and settings.partition == "own":
            return cls._read(settings)
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
            check(name, dataset.shape, dataset.classes, f"data set '{dataset.name}'")
        return cls(settings, dataset, clients, tuple(later))

    @classmethod
    def of_clients(
        cls,
        clients: Sequence[Client],
        class_names: Sequence[str] | None = None,
        common_model: ModelSource | None = None,
        name: str = "own",
        **values: Any,
    ) -> "Task":
        """Clients that bring their own data and models; `values` are settings: seed, validation_fraction …

        `class_names`: what the labels mean (else numbers, or the names that occur). `common_model`: what all share, for
        methods that need one model for all, or share a small one beside each client's own.
        """
        if not clients:
            raise DataError("there are no clients; give a list of Client(name, train, test)")
        common = None if common_model is None else model_ref(common_model)
        given = {"data": name, "clients": len(clients), "partition": "own", "model": ("own",)}
        settings = TaskSettings.check({**values, **given, "common_model": common and str(common)})
        dataset, owned = together(clients, settings, class_names)
        models = told_apart([client.model_for(dataset.shape, dataset.classes) for client in clients])
        if common is not None:
            check(common, dataset.shape, dataset.classes, "the common model")
        named = settings.model_copy(update={"model": _in_short(models)})
        return cls(named, dataset, owned, names=tuple(c.name for c in clients), models=models, common=common)

    @classmethod
    def _read(cls, settings: TaskSettings) -> "Task":
        """From a folder of clients."""
        if not is_folder(settings.data):
            raise DataError(
                f"the clients of '{settings.data}' were given in Python; give them again, the same ones in the same "
                "order: task=Task.of_clients([…])"
            )
        folder = Path(settings.data_dir or "", settings.data)
        found = clients_in(folder)
        if len(found) != settings.clients:
            raise DataError(f"{folder} holds {len(found)} clients, not {settings.clients}")
        clients = [
            Client.read(path, settings.model[k % len(settings.model)], settings.image_size)
            for k, path in enumerate(found)
        ]
        dataset, owned = together(clients, settings)
        for client in clients:
            client.model_for(dataset.shape, dataset.classes)
        if settings.common_model is not None:
            check(settings.common_model, dataset.shape, dataset.classes, "the common model")
        return cls(settings, dataset, owned, names=tuple(client.name for client in clients))

    @property
    def client_names(self) -> tuple[str, ...]:
        """Of all clients; one that has none is called by its number."""
        return self.names or tuple(map(str, range(len(self.clients))))

    def number(self, client: int | str) -> int:
        """A client's number, of that or of its name."""
        names = self.client_names
        if isinstance(client, str) and client in names:
            return names.index(client)
        if isinstance(client, str) and client.isdecimal():
            client = int(client)
        if isinstance(client, str):
            raise DataError(f"there is no client '{client}'{suggestion(client, names)}; they are: {', '.join(names)}")
        if not 0 <= client < len(names):
            raise DataError(f"there is no client {client}; there are {len(names)}, numbered from 0")
        return client

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
        return Moving(self.phases[phase], self.phases[phase + 1], share)

    @property
    def shape(self) -> Shape:
        return self.dataset.shape

    @property
    def common_model(self) -> ModelRef:
        """The model of methods that need one for all clients."""
        return self.common or self.settings.common_model or self._models[-1]

    @property
    def _models(self) -> tuple[ModelRef, ...]:
        return self.models or self.settings.model

    @cached_property
    def counts(self) -> np.ndarray:
        """Clients × classes: who has how many samples of which label, in all phases together."""
        owned = [
            np.concatenate([part for c in phases for part in (c.train, c.validation, c.test)])
            for phases in zip(*self.phases, strict=True)
        ]
        return label_counts(owned, self.dataset.labels, self.dataset.classes)

    def spec(self, client: int, model: ModelRef | None = None) -> ClientSpec:
        """A client as methods see it, with its own model or a given one; its labels are those of the first round."""
        train = self.clients[client].train
        [counts] = label_counts([train], self.dataset.labels, self.dataset.classes)
        return ClientSpec(
            id=client,
            model=model or self._models[client % len(self._models)],
            shape=self.shape,
            classes=self.dataset.classes,
            samples=len(train),
            clients=len(self.clients),
            label_counts=tuple(counts.tolist()),
            name=self.names[client] if self.names else "",
            common=self.common or self.settings.common_model,
        )


def _in_short(models: Sequence[ModelRef]) -> tuple[str, ...]:
    """The models' names, in turn."""
    names = tuple(str(model).replace(",", ";") for model in models)
    return names[:1] if len(set(names)) == 1 else names


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
