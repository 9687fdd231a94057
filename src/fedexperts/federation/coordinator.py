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
from fedexperts.engine.member import first_of_each, fitting
from fedexperts.engine.server import Server
from fedexperts.engine.store import MANIFEST, write_manifest
from fedexperts.errors import FederationError, FedExpertsError, SavedStateError
from fedexperts.federation.absences import ABSENCES, Absences
from fedexperts.federation.asking import Asking, Rules
from fedexperts.federation.carrier import Carrier
from fedexperts.federation.checks import Inspector, Limits
from fedexperts.federation.envelope import Answer, Plan, Profile, PublicSpec, Request, RequestHead, Shelf, Task
from fedexperts.federation.site import packed
from fedexperts.measure import FETCHES, HISTORY, STATE, Fetches, History
from fedexperts.methods import Channel, Reply, Round, Want, method_class
from fedexperts.task import ClientSpec

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
        if method.begins() is not None:
            raise FederationError(f"{method.name} goes on from another run, which a federation cannot do yet")
        specs, self.note = fitting(
            method, _specs(settings, sites, profiles), settings.common_model or settings.model[-1]
        )
        self.history, self.absences = History(folder / HISTORY), Absences(folder / ABSENCES)
        watching = (self.history, Fetches(folder / FETCHES), self.absences)
        self._first = [spec.public for spec in first_of_each(specs)]
        super().__init__(method, dict(enumerate(specs)), settings, self._first, watching)
        self.run_name = run
        self.sites = sites
        self.folder = folder
        self.rules = rules
        self._asking = Asking(run, sites, carrier, rules, self.absences, note)
        self.server = dict(self.start)
        self.seconds = 0.0  # of all processes that worked on this run
        limits = Limits(change=rules.change_limit)
        self._inspector = Inspector(method, self.specs, settings, self._first, limits)
        self._shelves: dict[int, Shelf] = {}
        self._note = note

    def run(self) -> None:
        """All rounds that are left."""
        if (self.folder / STATE / MANIFEST).exists():
            manifest = self.checkpointed(self.folder / STATE)
            if manifest["data"] != self._who():
                raise SavedStateError(f"the run in {self.folder} was started with other sites, or other data at them")
            self.continues(self.folder / STATE, manifest)
            self.seconds = manifest["seconds"]
            self._note(round=self.round)
        everybody = {client: self._request(client, Task.OPEN, self.now(0)) for client in self.specs}
        self._asking.gather(Task.OPEN, self.now(0), everybody, self._shelved)
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
        sent = {client: self.send(client, now) for client in self.sample(now.number)}
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
        trained = self._asking.gather(Task.TRAIN, now, requests, take, min(self.rules.minimum, len(requests)))
        self._combine(replies, now)
        self._close(now, trained)
        for observer in self.observers:
            observer.ended(now.number, losses)

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
        evaluating = now.number % self.settings.evaluate_every == 0 or now.number == self.settings.rounds
        asked = list(self.specs) if evaluating else list(trained) if self.method.exchanges else []
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
        plan = Plan(
            run=self.run_name,
            settings=self.settings.defining(),
            client=PublicSpec.of(self.specs[client].public),
            first=tuple(map(PublicSpec.of, self._first)),
        )
        others = {k: shelf for k, shelf in (shelves or {}).items() if k != client}
        head = RequestHead(task=task, round=now.number, plan=plan, evaluate=evaluate, shelves=others)
        return Request(head, payload)


def _specs(settings: Settings, sites: Sequence[str], profiles: Mapping[int, Profile]) -> list[ClientSpec]:
    """The clients that the sites are, with the run's models in turn."""
    for client, profile in profiles.items():
        same = [(who.shape, who.classes, who.reading) for who in (profile, profiles[0])]
        if same[0] != same[1]:
            raise FederationError(
                f"{sites[client]} and {sites[0]} do not read their data alike: samples of shape {profile.shape} and "
                f"{profiles[0].shape}, {profile.classes} and {profiles[0].classes} classes; names of classes, words "
                "and columns must be the same too"
            )
    return [
        ClientSpec(
            id=client,
            model=settings.model[client % len(settings.model)],
            clients=len(profiles),
            name=sites[client],
            **profiles[client].model_dump(include={"shape", "classes", "samples"}),
        )
        for client in sorted(profiles)
    ]
