"""The clients' half of a run: what those on this machine do in a round."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedexperts.config import EngineSettings, PrivacySettings, Settings, TrainSettings
from fedexperts.data import Dataset
from fedexperts.engine.batches import BatchPlan, DataAt, DeviceData, Portion
from fedexperts.engine.choosing import executor_for
from fedexperts.engine.cohort import Cohort, Job, Lesson, Query, Received
from fedexperts.engine.executors import pick_device
from fedexperts.engine.fleet import Fleet
from fedexperts.engine.member import Member
from fedexperts.engine.observer import Observer
from fedexperts.engine.phases import phase
from fedexperts.engine.privacy import check_covered, protected
from fedexperts.engine.store import Store
from fedexperts.engine.waves import Waves
from fedexperts.errors import DivergedError, MethodError
from fedexperts.methods import (
    NOTHING,
    ByClass,
    Channel,
    Message,
    Method,
    Owner,
    Reply,
    Round,
    Stage,
    State,
    Trained,
    Want,
    part_of,
    select,
)  # fmt: skip
from fedexperts.task import ClientSpec


class Clients(Member, ABC):
    """All clients of a simulation, or a site's one: each has its data, keeps its own, trains and replies.

    Where the server's messages and the peers' parts come from is left open: out of the same process, or over a network.
    """

    def __init__(
        self,
        method: Method,
        specs: Mapping[int, ClientSpec],
        settings: Settings,
        dataset: Dataset,
        data_at: DataAt,
        start: State,
        observers: Sequence[Observer] = (),
        folder: Path | None = None,
    ) -> None:
        """`folder`: where the store has its files, if it has any."""
        super().__init__(method, specs, settings, start, observers)
        train, engine = settings.part(TrainSettings), settings.part(EngineSettings)
        self.privacy: PrivacySettings = settings.part(PrivacySettings)
        if self.privacy.clip is not None:
            check_covered(method)
        self.device = pick_device(settings.device, settings.executor)
        self.dataset = dataset
        self.data_at = lru_cache(maxsize=2)(data_at)
        self.data = DeviceData.of(dataset, self.device, self.dtype)
        self.batches = BatchPlan(self.data_at, settings.batch_size, settings.seed)
        self.executor = executor_for(self.data, train, engine)
        self.store = Store(settings.store, self.device, folder)
        limit = settings.group_size or (len(specs) if settings.store == "device" else self.sample_size)
        self.fleet = Fleet(
            method, specs, settings.seed, self.store, self.device, self.dtype, limit, self.now(1), self.start
        )
        self.waves = Waves(self.fleet, self.executor, self.device)

    @abstractmethod
    def send(self, client: int, now: Round) -> Message:
        """What the server sends to a client at the start of a round."""

    @abstractmethod
    def fetch(self, client: int, wants: Sequence[Want], now: Round) -> Mapping[Want, Message]:
        """What of it peers give to a client."""

    def expect(self, wanted: Mapping[int, Sequence[Want]], now: Round) -> None:
        """All that will be fetched in a round, before the first of it is."""

    def noise(self, client: int, now: Round) -> np.random.Generator:
        """Where a client's noise of a round comes from, if there is to be any."""
        return now.stream("noise", client)

    def train(self, clients: Sequence[int], now: Round) -> tuple[list[Job], list[Reply]]:
        """Let clients train and reply, as many at a time as the device has room for."""
        done: list[Job] = []
        replies: list[Reply] = []
        sent: dict[int, Message] = {}  # once to each, even where a wave is done again

        def trained(cohorts: list[Cohort]) -> list[tuple[Job, list[Message]]]:
            jobs = [self._job(cohort, now, sent) for cohort in cohorts]
            with phase("training"):
                self.executor.train(jobs)
            answers = [self._answers(job, now) for job in jobs]
            for job in jobs:
                self.fleet.changed(job.cohort)
            return list(zip(jobs, answers, strict=True))

        for wave in self.waves.each(clients, trained):
            for job, answers in wave:
                replies += self._passed(job, answers, now)
                for observer in self.observers:
                    observer.trained(now.number, job)
                job.cohort, job.collected = job.cohort.absent(), None  # else the fleet's memory could not be given back
                done.append(job)
        return done, replies

    def rehearse(self, client: int, now: Round) -> Message:
        """What a client would reply in a round, as it is and without training."""
        [[cohort]] = self.fleet.waves([client])
        job = self._job(cohort, now)
        replies = self._passed(job, self._answers(job, now), now)
        return replies[0].message if replies else Message()

    @phase("aggregation")
    def _job(self, cohort: Cohort, now: Round, sent: dict[int, Message] | None = None) -> Job:
        """Every client of the cohort receives, if it has not been `sent` it yet; what it will train on is laid out."""
        sent = {} if sent is None else sent
        for client in cohort.clients:
            if client.id not in sent:
                sent[client.id] = self.send(client.id, now)
        messages = [sent[client.id] for client in cohort.clients]
        changes = [self.method.receive(own, message) for own, message in zip(cohort.each(), messages, strict=True)]
        self.complete(cohort, changes)
        cohort.write(changes)
        lessons = [self._lesson(cohort, stage, i, now.number) for i, stage in enumerate(self.method.stages(now))]
        return Job(cohort, lessons, Received.of(cohort.clients, list(map(self.method.heard, messages))), messages)

    def complete(self, cohort: Cohort, changes: Sequence[Mapping[str, Tensor]]) -> None:
        """Every tensor of a client is kept by it or comes with the message; one that does neither would be anything."""
        kept = self.method.kept()
        needed = {name for name in cohort.program.layout if part_of(name) not in kept}
        for client, change in zip(cohort.clients, changes, strict=True):
            if missing := sorted(needed - change.keys()):
                raise MethodError(
                    f"method '{self.method.name}': {client.called} neither keeps nor receives {', '.join(missing)}"
                )

    @phase("data")
    def _lesson(self, cohort: Cohort, stage: Stage, number: int, now: int) -> Lesson:
        portion = Portion(stage.epochs, stage.share, stage.samples)
        orders = [self.batches.take(client.id, now, number, portion) for client in cohort.clients]
        return Lesson(stage, self.to_device(padded(orders)), tuple(len(order) for order in orders))

    @phase("aggregation")
    def _answers(self, job: Job, now: Round) -> list[Message]:
        """Let every client of the cohort finish; what they will reply."""
        cohort = job.cohort
        by_class = self._collect(job, now) if self.method.collects else [NOTHING] * len(cohort)
        received = [job.received.by(i) for i in range(len(cohort))]

        def trained(cohort: Cohort) -> list[Trained]:
            return [Trained(*of) for of in zip(cohort.clients, cohort.each(), received, by_class, strict=True)]

        cohort.write([self.method.finish(after, now) for after in trained(cohort)])
        # A message must outlive the cohort's memory, which the next wave or round uses again.
        shared = select(cohort.tensors, self.method.owned(Owner.SHARED))
        lasting = replace(cohort, tensors=cohort.tensors | {n: t.clone() for n, t in shared.items()})
        answers = list(self.method.replies(trained(lasting), now))
        if self.privacy.clip is not None:
            for i, (client, sent) in enumerate(zip(cohort.clients, job.sent, strict=True)):
                if answers[i]:
                    noise = self.noise(client.id, now)
                    answers[i] = protected(self.method, answers[i], sent, self.privacy, noise)
        return answers

    def _passed(self, job: Job, answers: Sequence[Message], now: Round) -> list[Reply]:
        """Those of a cohort's answers that go out."""
        for client, message in zip(job.cohort.clients, answers, strict=True):
            self.passes(now.number, Channel.UP, client, message)
        both = zip(job.cohort.clients, answers, strict=True)
        return [Reply(client.id, message) for client, message in both if message]

    @phase("training")
    def _collect(self, job: Job, now: Round) -> list[ByClass]:
        """What the method collects of every client's training data, class by class."""
        own = [self.data_at(now.number)[client.id].train for client in job.cohort.clients]
        index = self.to_device(padded(own))
        stay = self.sample_size == len(self.specs) and self.fleet.has_room_for(len(self.specs))
        job.collected = Query(job.cohort, self.method.collect, job.received, index, tuple(map(len, own)), again=stay)
        rows = self.executor.map([job.collected])[0].to(self.data.dtype)  # which products in bfloat16 need not have
        there = [self.dataset.labels[samples] for samples in own]
        labels = self.to_device(padded(there, fill=-1))
        belongs = (labels[..., None] == torch.arange(self.dataset.classes, device=self.device)).to(rows)
        counts = belongs.sum(1)
        means = torch.einsum("nsc,nsw->ncw", belongs, rows) / counts.clamp(min=1)[..., None]
        kinds = [np.unique(of_one) for of_one in there]
        classes = [row[: len(kind)] for row, kind in zip(self.to_device(padded(kinds)), kinds, strict=True)]
        return [ByClass(*of_one) for of_one in zip(counts, means, classes, strict=True)]

    @phase("waiting")
    def losses(self, jobs: Sequence[Job], now: Round) -> dict[int, float]:
        """The clients' mean losses in their last stage; an error where one is not a number any more."""
        found: dict[int, float] = {}
        for job in jobs:
            for number, losses in enumerate(torch.stack(job.losses).tolist() if job.losses else []):
                for client, loss in zip(job.cohort.clients, losses, strict=True):
                    if not math.isfinite(loss):
                        raise DivergedError(
                            f"the loss of {client.called} ({client.model}, {client.samples} samples) became {loss} "
                            f"in stage {number + 1} of round {now.number}; "
                            f"a learning rate below {self.settings.lr:g} may help"
                        )
                    found[client.id] = loss
        return found

    def to_device(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor


def padded(rows: Sequence[np.ndarray], fill: int = 0) -> np.ndarray:
    """Rows of different lengths as one array, filled up at their ends."""
    out = np.full((len(rows), max(map(len, rows)), *rows[0].shape[1:]), fill, dtype=np.int64)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return out
