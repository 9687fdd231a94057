"""The walk of a run: sample, send, train, reply, combine, evaluate, save; round after round."""

import math
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedexperts.config import EngineSettings, Settings, TrainSettings
from fedexperts.engine.batches import BatchPlan, DeviceData, Portion
from fedexperts.engine.choosing import executor_for
from fedexperts.engine.cohort import Cohort, Job, Lesson, Query, Received
from fedexperts.engine.exchange import exchange
from fedexperts.engine.executors import pick_device
from fedexperts.engine.fleet import Fleet
from fedexperts.engine.observer import Evaluation, Observer
from fedexperts.engine.store import Store, read_manifest, read_tensors, write_manifest, write_tensors
from fedexperts.errors import DivergedError, MethodError, ModelError, PrivacyError, SavedStateError
from fedexperts.methods import (
    NOTHING,
    ByClass,
    Channel,
    Message,
    Method,
    Model,
    Owner,
    Reply,
    Round,
    Stage,
    State,
    Trained,
    part_of,
    select,
)  # fmt: skip
from fedexperts.randomness import stream
from fedexperts.task import ClientSpec, Task

NUMBERS = 8
"""A few numbers may go with a message's tensors, no more: tensors are what is counted and checked by name."""


class Simulation:
    """A federation in one process. The server's state and the number of complete rounds are all it holds itself."""

    def __init__(
        self,
        method: Method,
        task: Task,
        settings: Settings,
        observers: Sequence[Observer] = (),
        folder: Path | None = None,
    ) -> None:
        """`folder`: where checkpoints go; without it nothing is saved."""
        self.method = method
        self.task = task
        self.settings = settings
        self.observers = observers
        self.folder = folder
        train, engine = settings.part(TrainSettings), settings.part(EngineSettings)
        self.device = pick_device(settings.device, settings.executor)
        self._data_at = lru_cache(maxsize=2)(partial(task.at, rounds=settings.rounds))  # round → who has which data
        dtype = torch.float64 if settings.precision == "float64" else torch.float32
        self.data = DeviceData.of(task.dataset, self.device, dtype)
        self.batches = BatchPlan(self._data_at, settings.batch_size, settings.seed)
        self.executor = executor_for(self.data, train, engine)
        self.store = Store(settings.store, self.device, folder)
        self.specs, self.note = specs_for(method, task)
        limit = settings.group_size or (len(self.specs) if settings.store == "device" else self._sample_size)
        self.fleet = Fleet(method, self.specs, settings.seed, self.store, self.device, dtype, limit, self._round(1))
        self.server: State = self._on_device(self.fleet.start)
        self.round = 0
        self.seconds = 0.0  # of all processes that worked on this run

    @property
    def _sample_size(self) -> int:
        return max(1, round(self.settings.participation * len(self.task.clients)))

    # --- rounds

    def run(self) -> None:
        """All rounds that are left, with evaluations and checkpoints where they are due."""
        for observer in self.observers:
            observer.started(self)
        try:
            while self.round < self.settings.rounds:
                start = time.perf_counter()
                self.step()
                self.seconds += time.perf_counter() - start
                if self._due(self.settings.checkpoint_every):
                    self.checkpoint()
        finally:
            self.executor.close()

    def _due(self, every: int) -> bool:
        """Whether something that happens every so many rounds, and after the last one, happens after this one."""
        return self.round % every == 0 or self.round == self.settings.rounds

    def _began(self) -> bool:
        """Whether this is the first round of a run that goes on from another: what follows is held against it."""
        return self.round == 1 and self.method.begins() is not None

    def step(self) -> None:
        """One round. Everything is queued on the device before its first result is waited for."""
        now = self._round(self.round + 1)
        replies: list[Reply] = []
        done: list[Job] = []
        for cohorts in self.fleet.waves(self.sample(now.number)):
            jobs = [self._job(cohort, now) for cohort in cohorts]
            self.executor.train(jobs)
            for job in jobs:
                self.fleet.changed(job.cohort)
                replies += self._replies(job, now)
                for observer in self.observers:
                    observer.trained(now.number, job)
            done += jobs
        if self.method.exchanges:
            exchange(self, done, now)
        replies.sort(key=lambda reply: reply.client)
        self.server = self.method.combine(self.server, replies, now)
        self.round = now.number
        evaluating = self._due(self.settings.evaluate_every) or self._began()
        answers = self._predict_held_out() if evaluating else []
        if self.round < self.settings.rounds:  # while the device is busy
            self.batches.prepare(self.sample(self.round + 1), self.round + 1)
        losses = self._losses(done)
        results = self._scores(answers)
        for observer in self.observers:
            if evaluating:
                observer.evaluated(self.round, results)
            observer.ended(self.round, losses)

    def _round(self, number: int) -> Round:
        return Round(number, self.settings.rounds, self.settings.seed, len(self.task.clients))

    @property
    def everybody(self) -> Sequence[int]:
        """The clients that are evaluated."""
        return range(len(self.specs))

    def sample(self, round_number: int) -> list[int]:
        """S^t: K = C·N clients, drawn without replacement; all, in a round that the method wants everyone in."""
        if self.method.everyone(self._round(round_number)):
            return list(range(len(self.specs)))
        rng = stream(self.settings.seed, "sampling", round_number)
        return sorted(rng.choice(len(self.specs), self._sample_size, replace=False).tolist())

    def _job(self, cohort: Cohort, now: Round) -> Job:
        """Send to every client of the cohort, let it receive, and lay out what it will train on."""
        messages = [self.method.send(self.server, client.public, now) for client in cohort.clients]
        for client, message in zip(cohort.clients, messages, strict=True):
            self.passes(now.number, Channel.DOWN, client, message)
        changes = [self.method.receive(own, message) for own, message in zip(cohort.each(), messages, strict=True)]
        self._complete(cohort, changes)
        cohort.write(changes)
        lessons = [self._lesson(cohort, stage, i, now.number) for i, stage in enumerate(self.method.stages(now))]
        return Job(cohort, lessons, Received.of(cohort.clients, list(map(self.method.heard, messages))))

    def _complete(self, cohort: Cohort, changes: Sequence[Mapping[str, Tensor]]) -> None:
        """Every tensor of a client is kept by it or comes with the message; one that does neither would be anything."""
        kept = self.method.kept()
        needed = {name for name in cohort.program.layout if part_of(name) not in kept}
        for client, change in zip(cohort.clients, changes, strict=True):
            if missing := sorted(needed - change.keys()):
                raise MethodError(
                    f"method '{self.method.name}': {client.called} neither keeps nor receives {', '.join(missing)}"
                )

    def _lesson(self, cohort: Cohort, stage: Stage, number: int, now: int) -> Lesson:
        portion = Portion(stage.epochs, stage.share, stage.samples)
        orders = [self.batches.take(client.id, now, number, portion) for client in cohort.clients]
        return Lesson(stage, self._to_device(_padded(orders)), tuple(len(order) for order in orders))

    def _replies(self, job: Job, now: Round) -> list[Reply]:
        """Let every client of the cohort finish, and reply."""
        cohort = job.cohort
        by_class = self._collect(job, now) if self.method.collects else [NOTHING] * len(cohort)

        def trained(cohort: Cohort) -> list[Trained]:
            return [
                Trained(client, cohort.of(i), job.received.by(i), by_class[i])
                for i, client in enumerate(cohort.clients)
            ]

        cohort.write([self.method.finish(after, now) for after in trained(cohort)])
        # A message must outlive the cohort's memory, which the next wave or round uses again.
        shared = select(cohort.tensors, self.method.owned(Owner.SHARED))
        lasting = replace(cohort, tensors=cohort.tensors | {n: t.clone() for n, t in shared.items()})
        replies = []
        for after in trained(lasting):
            message = self.method.reply(after, now)
            self.passes(now.number, Channel.UP, after.client, message)
            if message:
                replies.append(Reply(after.client.id, message))
        return replies

    def _collect(self, job: Job, now: Round) -> list[ByClass]:
        """What the method collects of every client's training data, class by class."""
        own = [self._data_at(now.number)[client.id].train for client in job.cohort.clients]
        index = self._to_device(_padded(own))
        job.collected = Query(job.cohort, self.method.collect, job.received, index, tuple(map(len, own)))
        rows = self.executor.map([job.collected])[0].to(self.data.dtype)  # which products in bfloat16 need not have
        labels = self._to_device(_padded([self.task.dataset.labels[samples] for samples in own], fill=-1))
        belongs = (labels[..., None] == torch.arange(self.task.dataset.classes, device=self.device)).to(rows)
        counts = belongs.sum(1)
        means = torch.einsum("nsc,nsw->ncw", belongs, rows) / counts.clamp(min=1)[..., None]
        return [ByClass(*pair) for pair in zip(counts, means, strict=True)]

    def passes(self, now: int, channel: Channel, client: ClientSpec, message: Message) -> None:
        """Every message of a run comes by here."""
        if not message:
            return
        if len(message.numbers) > NUMBERS:
            raise PrivacyError(
                f"method '{self.method.name}' sends {len(message.numbers)} numbers where at most {NUMBERS} may go"
            )
        private = self.method.forbidden(channel) & {part_of(name) for name in (*message.tensors, *message.known)}
        if private:
            raise PrivacyError(
                f"method '{self.method.name}' put {sorted(private)} into a message '{channel}' of {client.called}, "
                f"but {', '.join(f'{p} is {self.method.owners[p]}' for p in sorted(private))}"
            )
        for observer in self.observers:
            observer.message(now, channel, client.id, message)

    def _losses(self, jobs: Sequence[Job]) -> dict[int, float]:
        """The clients' mean losses in their last stage; an error where one is not a number any more."""
        found: dict[int, float] = {}
        for job in jobs:
            for number, losses in enumerate(torch.stack(job.losses).tolist() if job.losses else []):
                for client, loss in zip(job.cohort.clients, losses, strict=True):
                    if not math.isfinite(loss):
                        raise DivergedError(
                            f"the loss of {client.called} ({client.model}, {client.samples} samples) became {loss} "
                            f"in stage {number + 1} of round {self.round}; "
                            f"a learning rate below {self.settings.lr:g} may help"
                        )
                    found[client.id] = loss
        return found

    # --- evaluation

    def evaluate(self) -> list[Evaluation]:
        """Every client's model, as it would be used now, on the client's own validation and test data."""
        return self._scores(self._predict_held_out())

    def _predict_held_out(self) -> list[tuple[Cohort, Tensor]]:
        answers: list[tuple[Cohort, Tensor]] = []
        for cohorts in self.fleet.waves(self.everybody):
            held_out = [[self._held_out(client.id) for client in cohort.clients] for cohort in cohorts]
            answers += zip(cohorts, self.ask(self._predicted_class, cohorts, held_out), strict=True)
        return answers

    def _scores(self, answers: list[tuple[Cohort, Tensor]]) -> list[Evaluation]:
        results = [
            self._score(client.id, predicted)
            for cohort, stacked in answers
            for client, predicted in zip(cohort.clients, stacked.cpu().numpy(), strict=True)
        ]
        return sorted(results, key=lambda result: result.client)

    def ask(self, function: Any, cohorts: Sequence[Cohort], samples: Sequence[Sequence[np.ndarray]]) -> list[Tensor]:
        """`function(model, x)` of each client's model as it would be used now, for some of its samples."""
        queries = [
            Query(used, function, received, self._to_device(_padded(own)), tuple(map(len, own)))
            for (used, received), own in zip(map(self._personalised, cohorts), samples, strict=True)
        ]
        return self.executor.map(queries)

    def _personalised(self, cohort: Cohort) -> tuple[Cohort, Received]:
        """The cohort as it would be used now, and what the server would send it."""
        messages = [self.message_for(client.id) for client in cohort.clients]
        changes = [self.method.personalise(own, message) for own, message in zip(cohort.each(), messages, strict=True)]
        self._complete(cohort, changes)
        # Looking must not change a client: what it keeps is replaced in a copy.
        kept, names = self.method.kept(), {name for change in changes for name in change}
        copies = {name: cohort.tensors[name].clone() for name in names if part_of(name) in kept}
        used = replace(cohort, tensors=cohort.tensors | copies)
        used.write(changes)
        return used, Received.of(cohort.clients, list(map(self.method.heard, messages)))

    def message_for(self, client: int) -> Message:
        """What the server would send to a client now."""
        return self.message_to(self.specs[client])

    def message_to(self, client: ClientSpec) -> Message:
        """The same for any client, even one that is new."""
        return self.method.send(self.server, client.public, self._round(self.round + 1))

    def _predicted_class(self, model: Model, x: Tensor, received: State) -> Tensor:
        """-1 where the model's answer is not a number."""
        logits = self.method.predict(model, x, received)
        return torch.where(logits.isfinite().all(1), logits.argmax(1), -1)

    def _held_out(self, client: int) -> np.ndarray:
        """A client's validation and test samples, as its data are now."""
        now = self._data_at(max(self.round, 1))[client]
        return np.concatenate([now.validation, now.test])

    def _score(self, client: int, predicted: np.ndarray) -> Evaluation:
        index = self._held_out(client)
        predicted = predicted[: len(index)]
        if (predicted < 0).any():
            raise DivergedError(
                f"{self.specs[client].called}'s model gives no numbers any more after round {self.round}; "
                f"a learning rate below {self.settings.lr:g} may help"
            )
        right = predicted == self.task.dataset.labels[index]
        cut = len(self.task.clients[client].validation)
        return Evaluation(client, int(right[:cut].sum()), cut, int(right[cut:].sum()), len(index) - cut)

    # --- the state of a run

    def begin(self, before: "Simulation") -> None:
        """Every client goes on with the model that it had at the end of another run on the same data."""
        if before.fingerprint != self.fingerprint:
            raise SavedStateError(
                f"the {before.method.name} run that this one begins with has other data, or another split of it; "
                "give both the same task and seed"
            )
        for client in range(len(self.specs)):
            fresh, found = self.fleet.fresh(client), before.client_state(client)
            if missing := sorted(n for n, t in found.items() if n not in fresh or fresh[n].shape != t.shape):
                raise SavedStateError(
                    f"{self.specs[client].called} cannot go on with its model of the {before.method.name} run: "
                    f"{', '.join(missing)} would not fit"
                )
            self.fleet.change(client, fresh | {name: tensor.to(fresh[name]) for name, tensor in found.items()})

    def client_state(self, client: int) -> State:
        """A client's complete model, as it would be used now."""
        own = self._on_device(self.fleet.program(client).blank() | self.fleet.kept(client))
        return own | self._on_device(self.method.personalise(own, self.message_for(client)))

    def checkpoint(self) -> None:
        """Save everything that the next round needs; the last good checkpoint stays until this one is complete."""
        if self.folder is None:
            return
        self.fleet.flush()
        write_manifest(
            self.folder,
            {
                "round": self.round,
                "seconds": self.seconds,
                "settings": self.settings.defining(),
                "data": self.fingerprint,
                "server": write_tensors(self.folder, f"server.{self.round}.safetensors", self.server),
                "clients": self.store.save(),
                "observers": {type(observer).__name__: observer.save() for observer in self.observers},
            },
        )

    def restore(self) -> None:
        """Continue from the checkpoint in the run's folder."""
        assert self.folder is not None
        manifest = read_manifest(self.folder)
        # A setting that there was not yet has the value that it has by itself: what was done then.
        then, now = Settings.check(manifest["settings"]).defining(), self.settings.defining()
        then["options"], now["options"] = (self.method.completed(values["options"]) for values in (then, now))
        if changed := [f"{name} was {then.get(name)!r}" for name in now if then.get(name) != now[name]]:
            raise SavedStateError(
                f"the run in {self.folder.parent} was started with other settings than it has now: "
                f"{', '.join(changed)}; put them back"
            )
        if manifest["data"] != self.fingerprint:
            raise SavedStateError(
                f"'{self.settings.data}' is not the data that the run in {self.folder.parent} was started with, or is "
                f"split otherwise (fingerprint {self.fingerprint}, not {manifest['data']}); give it the same data"
            )
        self.server = self._on_device(read_tensors(self.folder, manifest["server"]))
        self.store.load(manifest["clients"])
        self.round, self.seconds = manifest["round"], manifest["seconds"]
        for observer in self.observers:
            observer.restore(manifest["observers"].get(type(observer).__name__, {}))

    def _on_device(self, state: State) -> State:
        return {name: tensor.detach().to(self.device, copy=True) for name, tensor in state.items()}

    @cached_property
    def fingerprint(self) -> int:
        """Tells one set, and one split of it, from another."""
        dataset, found = self.task.dataset, 0
        clients = [client for phase in self.task.phases for client in phase]
        indices = [part for c in clients for part in (c.train, c.validation, c.test)]
        for array in (dataset.inputs, dataset.labels, *indices):
            found = zlib.crc32(np.ascontiguousarray(array).tobytes(), found)
        return found

    def _to_device(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor


def specs_for(method: Method, task: Task) -> tuple[list[ClientSpec], str]:
    """The clients as the method can have them: each with its own model if the parts that must be alike then are.

    Otherwise all run the task's common model, and the second result says so.
    """
    own = [task.spec(k) for k in range(len(task.clients))]
    shared = {}
    for spec in own:
        if spec.model in shared:
            continue
        try:
            with torch.device("meta"):
                parts = select(Model(method.parts(spec)).state_dict(), method.alike())
        except ModelError as error:
            raise ModelError(f"{spec.called}: {error}") from None
        shared[spec.model] = {name: tuple(tensor.shape) for name, tensor in parts.items()}
    first, *others = shared.values()
    if all(first == other for other in others):
        return own, ""
    note = f"{method.name} needs one model for all clients: all run {task.common_model}"
    return [task.spec(k, task.common_model) for k in range(len(task.clients))], note


def _padded(rows: Sequence[np.ndarray], fill: int = 0) -> np.ndarray:
    """Rows of different lengths as one array, filled up at their ends."""
    out = np.full((len(rows), max(map(len, rows)), *rows[0].shape[1:]), fill, dtype=np.int64)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return out
