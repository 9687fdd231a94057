"""What data a site has: a share of a set that all know, or its own, which it reads as all have agreed."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedexperts.client import Client, together
from fedexperts.config import TaskSettings
from fedexperts.data import ClientData, Dataset, Sums, counted, label_counts, numbered, occurring, split_own
from fedexperts.errors import FederationError
from fedexperts.federation.envelope import Plan, Profile, digest
from fedexperts.federation.reading import ColumnSums, Kind, Reading, Told, frequent
from fedexperts.models import ModelRef
from fedexperts.task import ClientSpec, Task


@dataclass(frozen=True)
class Data:
    """A site's data as they are read: the samples, and which of them are for what in round `number` of so many."""

    dataset: Dataset
    at: Callable[[int, int], ClientData]

    def spec(self, plan: Plan, model: ModelRef) -> ClientSpec:
        """The client that the plan means, if it is this one."""
        found = {
            "samples of shape": self.dataset.shape,
            "classes": self.dataset.classes,
            "training samples": len(self.at(1, 1).train),
        }
        expected = dict(zip(found, (plan.client.shape, plan.client.classes, plan.client.samples), strict=True))
        if wrong := [f"{what}: {found[what]}, not {expected[what]}" for what in found if found[what] != expected[what]]:
            raise FederationError(f"run {plan.run} is planned for other data than this site has: {'; '.join(wrong)}")
        train = self.at(1, plan.checked.rounds).train
        [counts] = label_counts([train], self.dataset.labels, self.dataset.classes)
        return replace(plan.client.spec(model), label_counts=tuple(counts.tolist()))


class Holding(ABC):
    """A site's data, before they are read."""

    site: str  # whose it is
    number: int  # of the client that it is in its own task

    @staticmethod
    def of(task: Task, client: int, site: str = "") -> "Holding":
        """One client's share of a task."""
        return Share(task, client, site)

    @property
    @abstractmethod
    def profile(self) -> Profile:
        """What the site says of it to anybody who may ask."""

    @abstractmethod
    def tell(self, number: int) -> Told:
        """What the others must know so that all read alike, where the site is client `number`."""

    @abstractmethod
    def read(self, number: int, reading: Reading | None) -> Data:
        """The data as all have agreed to read theirs."""


@dataclass(frozen=True)
class Share(Holding):
    """Of a set that all sites have, and know how to read."""

    task: Task
    number: int
    site: str = ""

    @property
    def profile(self) -> Profile:
        dataset, form = self.task.dataset, self.task.dataset.form
        words = form.vocabulary.words if form.vocabulary else ()
        return Profile(
            site=self.site,
            shape=dataset.shape,
            classes=dataset.classes,
            samples=len(self.task.at(1, 1)[self.number].train),
            reading=digest(repr((dataset.class_names, words, form.columns, form.scale)).encode()),
        )

    def tell(self, number: int) -> Told:
        raise FederationError("this site has a share of a set that all know: there is nothing to agree on")

    def read(self, number: int, reading: Reading | None) -> Data:
        if reading is not None:
            self.tell(number)
        return Data(self.task.dataset, lambda number, rounds: self.task.at(number, rounds)[self.number])


@dataclass(frozen=True)
class Own(Holding):
    """A site's own samples. How they are split depends on its number among all: a simulation does it so too."""

    client: Client
    settings: TaskSettings
    site: str = ""
    tells: bool = True  # words and sums; names of classes and columns nobody can do without
    number: int = 0

    @property
    def profile(self) -> Profile:
        train, test = self.client.samples
        return Profile(
            site=self.site,
            shape=train.inputs.shape[1:],
            classes=len(occurring([train, test])),
            samples=len(self._split(0).train),
        )

    def tell(self, number: int) -> Told:
        train = self.client.samples[0]
        kind: Kind = (
            "text" if train.inputs.dtype.kind == "U" else "image" if train.inputs.dtype == np.uint8 else "values"
        )
        training = train.inputs[self._split(number).train]
        sums = words = None
        if self.tells and kind == "text":
            words = frequent(counted(training.tolist()))
        elif self.tells and kind == "values" and training.ndim == 2:
            found = Sums.of(training)
            sums = ColumnSums(count=found.count, total=found.total.tolist(), squares=found.squares.tolist())
        names = train.classes or occurring(self.client.samples)
        return Told(
            kind=kind,
            shape=train.inputs.shape[1:],
            labels=names if train.names else (),
            largest=None if train.names else len(names) - 1,
            folders=bool(train.classes),
            columns=train.columns,
            sums=sums,
            words=words,
        )

    def read(self, number: int, reading: Reading | None) -> Data:
        if reading is None:
            raise FederationError("this site has data of its own, and was not told how all read theirs")
        dataset, [own] = together([self.client], self.settings, like=reading.dataset, first=number)
        return Data(dataset, lambda number, rounds: own)

    def _split(self, number: int) -> ClientData:
        """Which samples are for what; classes are in the order that they have among all, whichever there are."""
        both = self.client.samples
        labels = np.concatenate([numbered(one, occurring(both)) for one in both])
        train, test = np.split(np.arange(len(labels)), [len(both[0].inputs)])
        return split_own(train, test, labels, self.settings, number, self.client.name)
