"""The walk of a run: sample, send, train, reply, combine, evaluate, save; round after round."""

import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from fedexperts.config import Settings
from fedexperts.engine.exchange import exchange, reached
from fedexperts.engine.index import Index
from fedexperts.engine.member import drawn, first_of_each, fitting
from fedexperts.engine.observer import Evaluation, Observer
from fedexperts.engine.phases import TRACE, Profile, phase
from fedexperts.engine.saved import Record, write_manifest
from fedexperts.engine.server import Server
from fedexperts.engine.usable import Usable
from fedexperts.errors import SavedStateError
from fedexperts.methods import Message, Method, Round, Want
from fedexperts.task import ClientSpec, Task


class Simulation(Server, Usable):
    """A federation in one process: its server and all its clients."""

    def __init__(
        self,
        method: Method,
        task: Task,
        settings: Settings,
        observers: Sequence[Observer] = (),
        folder: Path | None = None,
    ) -> None:
        """`folder`: where checkpoints go; without it nothing is saved."""
        specs, self.note = specs_for(method, task)
        super().__init__(
            method,
            dict(enumerate(specs)),
            settings,
            task.dataset,
            partial(task.at, rounds=settings.rounds),
            start=drawn(method, first_of_each(specs), settings),
            observers=observers,
            folder=folder,
        )
        self.task = task
        self.folder = folder
        self.server = self.on_device(self.start)
        self.seconds = 0.0  # of all processes that worked on this run
        self.profile: Profile | None = None
        self.leads = True  # of several processes that do a run together, the one that writes

    # --- rounds

    def run(self) -> None:
        """All rounds that are left, with evaluations and checkpoints where they are due."""
        for observer in self.observers:
            observer.started(self)
        left = self.settings.rounds - self.round
        if self.settings.profile and left:
            self.profile = Profile(
                self.device, left, self.folder.parent / TRACE if self.folder and self.leads else None
            )
        try:
            with self.profile or nullcontext():
                while self.round < self.settings.rounds:
                    start = time.perf_counter()
                    self.step()
                    self.seconds += time.perf_counter() - start
                    if self.due(self.settings.checkpoint_every):
                        self.checkpoint()
                    if self.profile is not None:
                        self.profile.ended()
        except BaseException as reason:
            for observer in self.observers:
                observer.stopped(reason)
            raise
        finally:
            self.executor.close()

    def step(self) -> None:
        """One round. Everything is queued on the device before its first result is waited for."""
        now = self.now(self.round + 1)
        done, replies = self.train(self.sample(now.number), now)
        if self.method.exchanges:
            exchange(self, {c.id: job.received.by(i) for job in done for i, c in enumerate(job.cohort.clients)}, now)
        self.combine(replies, now)
        evaluating = self.evaluates
        answers = self.predict_held_out() if evaluating else []
        if self.round < self.settings.rounds:  # while the device is busy
            self.batches.prepare(self.here(self.sample(self.round + 1)), self.round + 1)
        losses, results = self.losses(done, now), self.scores(answers)
        self.announce(losses, results if evaluating else None)

    def here(self, clients: Sequence[int]) -> Sequence[int]:
        """Those of the clients that are in this process."""
        return clients

    def announce(self, losses: Mapping[int, float], results: list[Evaluation] | None) -> None:
        """Tell the observers how a round went."""
        for observer in self.observers:
            if results is not None:
                observer.evaluated(self.round, results)
            observer.ended(self.round, losses)

    def fetch(self, client: int, wants: Sequence[Want], now: Round) -> Mapping[Want, Message]:
        """Peers are in the same process; a part of the fetches fails, if that is asked for."""
        through = reached(wants, self.settings.peer_drop, client, now)
        return {want: self.serve(want) for want in through}

    def serve(self, want: Want) -> Message:
        """What a peer gives."""
        return self.method.serve(self.fleet.present(want.peer), want)

    # --- the state of a run

    def begin(self, before: "Simulation") -> None:
        """Every client goes on with the model that it had at the end of another run on the same data."""
        if before.fingerprint != self.fingerprint:
            raise SavedStateError(
                f"the {before.method.name} run that this one begins with has other data, or another split of it; "
                "give both the same task and seed"
            )
        for client in self.everybody:
            self.goes_on(client, before)

    @phase("saving")
    def checkpoint(self) -> None:
        """Save everything that the next round needs; the last good checkpoint stays until this one is complete."""
        if self.folder is None:
            return
        self.fleet.flush()
        self.write_checkpoint(self.store.save())
        self.store.saved()

    def write_checkpoint(self, changed: Mapping[int, Record]) -> None:
        """The files of the clients that have changed are there; the rest, and that all of it belongs together."""
        assert self.folder is not None
        clients = self.index.extended(changed)
        rest = {"seconds": self.seconds, "data": self.fingerprint, "clients": clients}
        write_manifest(self.folder, {**self.saved(self.folder), **rest})
        self.index.settle()

    def restore(self) -> None:
        """Continue from the checkpoint in the run's folder."""
        assert self.folder is not None
        manifest = self.checkpointed(self.folder)
        if manifest["data"] != self.fingerprint:
            raise SavedStateError(
                f"'{self.settings.data}' is not the data that the run in {self.folder.parent} was started with, or is "
                f"split otherwise (fingerprint {self.fingerprint}, not {manifest['data']}); give it the same data"
            )
        self.continues(self.folder, manifest)
        self.server = self.on_device(self.server)
        self.store.load(self.index.read(manifest["clients"]), set(self.everybody))
        if self.leads:
            self.index.clear()
        self.seconds = manifest["seconds"]

    @cached_property
    def index(self) -> Index:
        assert self.folder is not None
        return Index(self.folder)

    @cached_property
    def fingerprint(self) -> int:
        """Tells one set, and one split of it, from another."""
        dataset, found = self.task.dataset, 0
        clients = [client for phase in self.task.phases for client in phase]
        indices = [part for c in clients for part in (c.train, c.validation, c.test)]
        for array in (dataset.inputs, dataset.labels, *indices):
            found = zlib.crc32(np.ascontiguousarray(array).tobytes(), found)
        return found


def specs_for(method: Method, task: Task) -> tuple[list[ClientSpec], str]:
    """The clients of a task as the method can have them, and what is to be said about that."""
    return fitting(method, [task.spec(k) for k in range(len(task.clients))], task.common_model)
