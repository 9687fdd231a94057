"""The walk of a run: sample, send, train, reply, combine, evaluate, save; round after round."""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedexperts.config import EngineSettings, Settings, TrainSettings
from fedexperts.engine.batches import BatchPlan, DeviceData
from fedexperts.engine.cohort import Cohort, Job, Lesson, Query
from fedexperts.engine.executors import executor_for, pick_device
from fedexperts.engine.fleet import Fleet
from fedexperts.engine.observer import Evaluation, Observer
from fedexperts.engine.store import Store, read_manifest, read_tensors, write_manifest, write_tensors
from fedexperts.errors import DivergedError, PrivacyError, SavedStateError
from fedexperts.methods import Channel, Message, Method, Model, Owner, Reply, Stage, State, part_of, select
from fedexperts.randomness import stream
from fedexperts.task import ClientSpec, Task


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
        self.device = pick_device(settings.device)
        dtype = torch.float64 if settings.precision == "float64" else torch.float32
        self.data = DeviceData.of(task.dataset, self.device, dtype)
        self.batches = BatchPlan([client.train for client in task.clients], settings.batch_size, settings.seed)
        self.executor = executor_for(self.data, train, engine)
        self.store = Store(settings.store, self.device, folder)
        self.specs, self.note = specs_for(method, task)
        limit = settings.group_size or (len(self.specs) if settings.store == "device" else self._sample_size)
        self.fleet = Fleet(method, self.specs, settings.seed, self.store, self.device, dtype, limit)
        self.server: State = self._on_device(self.fleet.start)
        self.round = 0

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
                self.step()
                if self._due(self.settings.checkpoint_every):
                    self.checkpoint()
        finally:
            self.executor.close()

    def _due(self, every: int) -> bool:
        """Whether something that happens every so many rounds, and after the last one, happens after this one."""
        return self.round % every == 0 or self.round == self.settings.rounds

    def step(self) -> None:
        """One round. Everything is queued on the device before its first result is waited for."""
        now = self.round + 1
        replies: list[Reply] = []
        done: list[Job] = []
        for cohorts in self.fleet.waves(self.sample(now)):
            jobs = [self._job(cohort, now) for cohort in cohorts]
            self.executor.train(jobs)
            for job in jobs:
                self.fleet.changed(job.cohort)
                replies += self._replies(job, now)
                for observer in self.observers:
                    observer.trained(now, job)
            done += jobs
        replies.sort(key=lambda reply: reply.client)
        self.server = self.method.combine(self.server, replies)
        self.round = now
        evaluating = self._due(self.settings.evaluate_every)
        answers = self._predict_held_out() if evaluating else []
        self.batches.prepare(self.sample(now + 1), now + 1)  # while the device is busy
        losses = self._losses(done, now)
        results = self._scores(answers)
        for observer in self.observers:
            if evaluating:
                observer.evaluated(now, results)
            observer.ended(now, losses)

    def sample(self, round_number: int) -> list[int]:
        """S^t: K = C·N clients, drawn without replacement."""
        rng = stream(self.settings.seed, "sampling", round_number)
        return sorted(rng.choice(len(self.specs), self._sample_size, replace=False).tolist())

    def _job(self, cohort: Cohort, now: int) -> Job:
        """Send to every client of the cohort, let it receive, and lay out what it will train on."""
        messages = [self.method.send(self.server, client) for client in cohort.clients]
        for client, message in zip(cohort.clients, messages, strict=True):
            self._passes(now, Channel.DOWN, client, message)
        cohort.write([self.method.receive(own, message) for own, message in zip(cohort.each(), messages, strict=True)])
        received, common = _gather(messages)
        lessons = [self._lesson(cohort, stage, i, now) for i, stage in enumerate(self.method.stages())]
        return Job(cohort, lessons, received, common)

    def _lesson(self, cohort: Cohort, stage: Stage, number: int, now: int) -> Lesson:
        orders = [self.batches.take(client.id, now, number, stage.epochs) for client in cohort.clients]
        return Lesson(stage, self._to_device(_padded(orders)), tuple(len(order) for order in orders))

    def _replies(self, job: Job, now: int) -> list[Reply]:
        # A message must outlive the cohort's memory, which the next wave or round uses again.
        shared = select(job.cohort.tensors, self.method.owned(Owner.SHARED))
        after = Cohort(
            job.cohort.program,
            job.cohort.clients,
            job.cohort.tensors | {n: t.clone() for n, t in shared.items()},
        )
        replies = []
        for i, (client, own) in enumerate(zip(after.clients, after.each(), strict=True)):
            message = self.method.reply(own, job.received_by(i), client)
            self._passes(now, Channel.UP, client, message)
            if message:
                replies.append(Reply(client.id, message))
        return replies

    def _passes(self, now: int, channel: Channel, client: ClientSpec, message: Message) -> None:
        """Every message of a run comes by here."""
        if not message:
            return
        private = self.method.forbidden(channel) & {part_of(name) for name in message.tensors}
        if private:
            raise PrivacyError(
                f"method '{self.method.name}' put {sorted(private)} into a message '{channel}' of client {client.id}, "
                f"but {', '.join(f'{p} is {self.method.owners[p]}' for p in sorted(private))}"
            )
        for observer in self.observers:
            observer.message(now, channel, client.id, message)

    def _losses(self, jobs: Sequence[Job], now: int) -> dict[int, float]:
        """The clients' mean losses in their last stage; an error where one is not a number any more."""
        found: dict[int, float] = {}
        for job in jobs:
            for number, losses in enumerate(torch.stack(job.losses).tolist()):
                for client, loss in zip(job.cohort.clients, losses, strict=True):
                    if not math.isfinite(loss):
                        raise DivergedError(
                            f"the loss of client {client.id} ({client.model}, {client.samples} samples) became {loss} "
                            f"in stage {number + 1} of round {now}; a learning rate below {self.settings.lr:g} may help"
                        )
                    found[client.id] = loss
        return found

    # --- evaluation

    def evaluate(self) -> list[Evaluation]:
        """Every client's model, as it would be used now, on the client's own validation and test data."""
        return self._scores(self._predict_held_out())

    def _predict_held_out(self) -> list[tuple[Cohort, Tensor]]:
        answers: list[tuple[Cohort, Tensor]] = []
        for cohorts in self.fleet.waves(range(len(self.specs))):
            held_out = [[self._held_out[client.id] for client in cohort.clients] for cohort in cohorts]
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
            Query(self._personalised(cohort), function, self._to_device(_padded(own)), tuple(map(len, own)))
            for cohort, own in zip(cohorts, samples, strict=True)
        ]
        return self.executor.map(queries)

    def _personalised(self, cohort: Cohort) -> Cohort:
        messages = [self.method.send(self.server, client) for client in cohort.clients]
        changes = [self.method.personalise(own, message) for own, message in zip(cohort.each(), messages, strict=True)]
        # Looking must not change a client: what it keeps is replaced in a copy.
        own = {n: torch.empty_like(cohort.tensors[n]) for n in changes[0] if part_of(n) in self.method.kept()}
        used = Cohort(cohort.program, cohort.clients, cohort.tensors | own)
        used.write(changes)
        return used

    def _predicted_class(self, model: Model, x: Tensor) -> Tensor:
        return self.method.predict(model, x).argmax(1)

    @cached_property
    def _held_out(self) -> list[np.ndarray]:
        return [np.concatenate([client.validation, client.test]) for client in self.task.clients]

    def _score(self, client: int, predicted: np.ndarray) -> Evaluation:
        index = self._held_out[client]
        right = predicted[: len(index)] == self.task.dataset.labels[index]
        cut = len(self.task.clients[client].validation)
        return Evaluation(client, int(right[:cut].sum()), cut, int(right[cut:].sum()), len(index) - cut)

    # --- the state of a run

    def client_state(self, client: int) -> State:
        """A client's complete model, as it would be used now."""
        own = self._on_device(self.fleet.program(client).blank() | self.fleet.kept(client))
        return own | self.method.personalise(own, self.method.send(self.server, self.specs[client]))

    def checkpoint(self) -> None:
        """Save everything that the next round needs; the last good checkpoint stays until this one is complete."""
        if self.folder is None:
            return
        self.fleet.flush()
        write_manifest(
            self.folder,
            {
                "round": self.round,
                "data": self.data.fingerprint,
                "server": write_tensors(self.folder, f"server.{self.round}.safetensors", self.server),
                "clients": self.store.save(),
                "observers": {type(observer).__name__: observer.save() for observer in self.observers},
            },
        )

    def restore(self) -> None:
        """Continue from the checkpoint in the run's folder."""
        assert self.folder is not None
        manifest = read_manifest(self.folder)
        if manifest["data"] != self.data.fingerprint:
            raise SavedStateError(
                f"'{self.settings.data}' is not the data that the run in {self.folder.parent} was started with "
                f"(fingerprint {self.data.fingerprint}, not {manifest['data']}); give it the same files"
            )
        self.server = self._on_device(read_tensors(self.folder, manifest["server"]))
        self.store.load(manifest["clients"])
        self.round = manifest["round"]
        for observer in self.observers:
            observer.restore(manifest["observers"].get(type(observer).__name__, {}))

    def _on_device(self, state: State) -> State:
        return {name: tensor.detach().to(self.device) for name, tensor in state.items()}

    def _to_device(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor


def specs_for(method: Method, task: Task) -> tuple[list[ClientSpec], str]:
    """The clients as the method can have them: each with its own model if the shared parts are then alike.

    Otherwise all run the task's common model, and the second result says so.
    """
    own = [task.spec(k) for k in range(len(task.clients))]
    shared = {}
    for spec in {spec.model: spec for spec in reversed(own)}.values():
        with torch.device("meta"):
            parts = select(Model(method.parts(spec)).state_dict(), method.owned(Owner.SHARED))
        shared[spec.model] = {name: tuple(tensor.shape) for name, tensor in parts.items()}
    first, *others = shared.values()
    if all(first == other for other in others):
        return own, ""
    note = f"{method.name} needs one model for all clients: all run {task.common_model}"
    return [task.spec(k, task.common_model) for k in range(len(task.clients))], note


def _gather(messages: Sequence[Message]) -> tuple[State, frozenset[str]]:
    """What a cohort received, stacked; what all got alike is kept once and named in the second result."""
    columns = {name: [message.tensors[name] for message in messages] for name in messages[0].tensors}
    common = frozenset(name for name, column in columns.items() if all(value is column[0] for value in column))
    return {n: column[0] if n in common else torch.stack(column) for n, column in columns.items()}, common


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as one array; what is filled up is never read."""
    out = np.zeros((len(rows), max(map(len, rows)), *rows[0].shape[1:]), dtype=np.int64)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return out
