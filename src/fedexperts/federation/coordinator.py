"""The server of a federation: the server's half of a run, with sites at the other end of a carrier.

A round: the sampled sites train and reply, the server combines what is right of it, and all close the round: they adopt
from peers and say how their models do. Then it is saved; a server that dies begins again after the last saved round.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedexperts.config import Settings, TrainSettings
from fedexperts.engine import Evaluation
from fedexperts.engine.saved import MANIFEST, write_manifest
from fedexperts.engine.server import Server
from fedexperts.errors import FederationError, FedExpertsError, SavedStateError
from fedexperts.federation.absences import ABSENCES, Absences
from fedexperts.federation.asking import Asking, Rules
from fedexperts.federation.carrier import Carrier
from fedexperts.federation.checks import Inspector, Limits
from fedexperts.federation.ended import Ended
from fedexperts.federation.envelope import Answer, Profile, Request, RequestHead, Shelf, Task
from fedexperts.federation.meeting import Meeting
from fedexperts.federation.steps import packed
from fedexperts.measure import FETCHES, HISTORY, STATE, Fetches, History
from fedexperts.methods import Channel, Message, Reply, Round, Want, method_class

log = logging.getLogger(__name__)


class Coordinator(Server):
    """One run of a federation."""

    def __init__(
        self,
        run: str,
        settings: Settings,
        sites: Sequence[str],
        profiles: Mapping[int, Profile],
        carrier: Carrier,
        folder: Path,
        rules: Rules,
        note: Callable[..., None] = lambda **known: None,
    ) -> None:
        """`sites`: their names, in the order of the clients' numbers; `folder`: where the run is written.

        `note` is told where the run stands.
        """
        method = method_class(settings.method)(settings.part(TrainSettings), settings.options)
        limits = Limits(change=rules.change_limit)
        self._meeting = Meeting(run, method, settings, sites, carrier, folder / STATE)
        self._reading = self._meeting.reading(profiles, rules.deadline)
        specs, self.note = self._meeting.clients(profiles, rules.deadline)
        start = self._meeting.start(specs, rules.deadline, limits)
        self.history, self.absences = History(folder / HISTORY), Absences(folder / ABSENCES)
        watching = (self.history, Fetches(folder / FETCHES), self.absences)
        super().__init__(method, dict(enumerate(specs)), settings, start, watching)
        self.run_name = run
        self.sites = sites
        self.folder = folder
        self.rules = rules
        self._asking = Asking(run, sites, carrier, rules, self.absences, note)
        self.server = dict(self.start)
        self.seconds = 0.0  # of all processes that worked on this run
        self._inspector = Inspector(method, self.specs, settings, start, limits)
        self._before = self._earlier(profiles, carrier)
        self._ready: set[int] = set()  # who has opened the run, as far as this process knows
        self._shelves: dict[int, Shelf] = {}
        self._note = note

    def _earlier(self, profiles: Mapping[int, Profile], carrier: Carrier) -> Ended | None:
        """The run that this one begins with, if it is of such a method. Its folder lies beside this one's."""
        if (beginning := self.method.begins()) is None:
            return None
        if beginning.folder is None:
            raise FederationError(f"{self.method.name} begins with a run of {beginning.method}, and none is named")
        return Ended(self.folder.parent / beginning.folder.name, self.sites, profiles, carrier)

    @property
    def class_names(self) -> Sequence[str]:
        """Numbers, where only sites know what they stand for."""
        return self._reading.classes if self._reading else list(map(str, range(self.specs[0].classes)))

    def run(self) -> None:
        """All rounds that are left."""
        if (self.folder / STATE / MANIFEST).exists():
            manifest = self.checkpointed(self.folder / STATE)
            if manifest["data"] != self._who():
                raise SavedStateError(f"the run in {self.folder} was started with other sites, or other data at them")
            self.continues(self.folder / STATE, manifest)
            self.seconds = manifest["seconds"]
            self._note(round=self.round)
        while self.round < self.settings.rounds:
            start = time.monotonic()
            self.step()
            self.seconds += time.monotonic() - start
            rest = {"seconds": self.seconds, "data": self._who(), "clients": {}}
            write_manifest(self.folder / STATE, {**self.saved(self.folder / STATE), **rest})
            self._note(round=self.round, seconds=round(self.seconds, 3))

    def _who(self) -> list[list[str | int]]:
        return [[self.sites[k], str(spec.model), spec.classes, spec.samples] for k, spec in self.specs.items()]

    # --- a round

    def step(self) -> None:
        now = self.now(self.round + 1)
        sampled = self.sample(now.number)
        minimum = min(self.rules.minimum, len(sampled))
        self._open(now, sampled, minimum)
        sent = {client: self.send(client, now) for client in sampled if client in self._ready}
        self._inspector.unusual.clear()
        replies: list[Reply] = []
        losses: dict[int, float] = {}

        def take(client: int, answer: Answer) -> None:
            message = self._inspector.opened(client, answer.payload, sent[client], self.server, now)
            self.passes(now.number, Channel.UP, self.specs[client], message)
            self._shelved(client, answer)
            self.history.flops.present[client] = answer.head.flops
            if answer.head.loss is not None:
                losses[client] = answer.head.loss
            if message:
                replies.append(Reply(client, message))

        requests = {client: self._request(client, Task.TRAIN, now, packed(message)) for client, message in sent.items()}
        trained = self._asking.gather(Task.TRAIN, now, requests, take, minimum)
        self._combine(replies, now)
        self._close(now, trained)
        for observer in self.observers:
            observer.ended(now.number, losses)

    def _open(self, now: Round, sampled: Sequence[int], minimum: int) -> None:
        """Who has not opened the run is asked to, and so is who refused something since: it may have lost its disk."""
        self._ready -= self._asking.refused
        self._asking.refused.clear()
        if not (unready := [client for client in self.specs if client not in self._ready]):
            return
        start = packed(Message(self.start))
        requests = {client: self._request(client, Task.OPEN, now, start) for client in unready}
        needed = minimum - len(self._ready & set(sampled))
        opened = self._asking.gather(Task.OPEN, now, requests, self._shelved, max(0, needed))
        if self._before is not None:
            begin = {client: self._begin(client, self._before, now) for client in opened}
            opened = self._asking.gather(Task.BEGIN, now, begin, lambda *_: None, max(0, needed))
        self._ready |= set(opened)

    def _begin(self, client: int, before: Ended, now: Round) -> Request:
        """A site begins with its own part of an earlier run, and with what the server would say to it there now."""
        head = RequestHead(
            task=Task.BEGIN, round=now.number, plan=self._meeting.plan(self.specs[client]), before=before.plan(client)
        )
        return Request(head, packed(before.message_for(client)))

    def _combine(self, replies: Sequence[Reply], now: Round) -> None:
        """Combine; where that cannot be, without those whose replies were laid out otherwise than expected."""
        usual = [reply for reply in replies if reply.client not in self._inspector.unusual]
        try:
            self.combine(replies, now)
        except (FedExpertsError, RuntimeError, ValueError, LookupError) as error:
            if len(usual) == len(replies):
                raise
            for client in self._inspector.unusual:
                self._asking.absent(client, Task.TRAIN, now, f"its reply does not fit the others' ({error})")
            self.combine(usual, now)

    def _close(self, now: Round, trained: Sequence[int]) -> None:
        """Those that have trained adopt from peers, if the method has that; all say how they do, if that is due."""
        evaluating = self.evaluates
        asked = sorted(self._ready) if evaluating else list(trained) if self.method.exchanges else []
        answers: dict[int, Answer] = {}

        def take(client: int, answer: Answer) -> None:
            if strange := [f.peer for f in answer.head.fetched if f.peer not in requests[client].head.shelves]:
                raise FederationError(f"it says that it has fetched from client {strange[0]}, whom nobody named to it")
            if evaluating and answer.head.scores is None:
                raise FederationError("it does not say how its model does")
            answers[client] = answer
            self._shelved(client, answer)

        shelves = dict(self._shelves) if self.method.exchanges else {}
        requests = {
            client: self._request(
                client,
                Task.CLOSE,
                now,
                packed(self.message_for(client)) if evaluating else b"",
                evaluate=evaluating,
                shelves=shelves if client in trained else {},
            )
            for client in asked
        }
        results: list[Evaluation] = []
        for client in self._asking.gather(Task.CLOSE, now, requests, take):  # in order, whoever answered first
            self._count(client, answers[client], now)
            if (scores := answers[client].head.scores) is not None:
                results.append(scores.of(client))
        if results:
            accuracy = sum(result.test_correct / result.test_samples for result in results) / len(results)
            self._note(accuracy=accuracy, evaluated=now.number)
            for observer in self.observers:
                observer.evaluated(now.number, results)

    def _count(self, client: int, answer: Answer, now: Round) -> None:
        """What a site says that it has fetched from peers: none of it came by here."""
        for fetched in answer.head.fetched:
            self.history.ledger.present[client, Channel.PEER].count(fetched.parameters, fetched.bytes)
            for observer in self.observers:
                observer.fetched(now.number, client, Want(fetched.peer, fetched.what))

    def _shelved(self, client: int, answer: Answer) -> None:
        if answer.head.shelf is not None:
            self._shelves[client] = answer.head.shelf.model_copy(update={"site": self.sites[client]})

    # --- requests and answers

    def _request(
        self,
        client: int,
        task: Task,
        now: Round,
        payload: bytes = b"",
        evaluate: bool = False,
        shelves: Mapping[int, Shelf] | None = None,
    ) -> Request:
        plan = self._meeting.plan(self.specs[client])
        others = {k: shelf for k, shelf in (shelves or {}).items() if k != client}
        reading = self._reading if task is Task.OPEN else None  # the site keeps it
        head = RequestHead(task=task, round=now.number, plan=plan, reading=reading, evaluate=evaluate, shelves=others)
        return Request(head, payload)
