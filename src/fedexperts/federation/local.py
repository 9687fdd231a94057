"""A site's one client: the clients' half of a run, with messages from a network."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedexperts.config import Frozen, Settings, TrainSettings
from fedexperts.engine.exchange import exchange
from fedexperts.engine.member import drawn
from fedexperts.engine.usable import Usable
from fedexperts.errors import FederationError, FedExpertsError, UnreachableError
from fedexperts.federation.envelope import OWN_MODEL, Fetched, Plan, PublicSpec, Scores, Shelf, digest
from fedexperts.federation.holding import Data
from fedexperts.federation.own_model import elsewhere, outline_of, planned, refuse_code
from fedexperts.measure.flops import FlopMeter
from fedexperts.methods import Channel, Message, Round, State, Want, method_class, part_of
from fedexperts.methods.message import inside, under
from fedexperts.models import ModelRef, Outline, OwnModel, check_model
from fedexperts.task import ClientSpec

log = logging.getLogger(__name__)

Fetch = Callable[[Shelf, str, str], bytes]
"""(a peer's shelf, run, what) → the bytes of it, or an error."""


Noise = Callable[[int, Round], np.random.Generator]
"""(client, round) → where the noise on its reply comes from."""


def unknowable(client: int, now: Round) -> np.random.Generator:
    """A stream of the machine's own entropy: who knows a stream's seed, as a server does, can take the noise off."""
    return np.random.default_rng()


class Local(Usable):
    """Made from a plan that is not trusted: the site's data, device and files are never the plan's to choose."""

    def __init__(
        self,
        plan: Plan,
        data: Data,
        own: Mapping[str, str],
        fetch: Fetch,
        leaves: Collection[str] | None = None,
        noise: Noise = unknowable,
        model: ModelRef | None = None,
        start: State | None = None,
        first: Sequence[PublicSpec] = (),
    ) -> None:
        """`own`: the site's own settings of where and how to compute; `leaves`: parts that may, if not all of them.

        `model`: the one that the site's operator chose, if there is one. `start`: what the server begins with; without
        it that is drawn here, from the models that clients have (`first` of each; by itself the site's own alone).
        """
        refuse_code(plan, first)
        here = {"store": "memory", "group_size": None, "data_dir": None, "compile": False, **own}
        settings = Settings.check(plan.checked.model_dump() | here)
        method = method_class(settings.method)(settings.part(TrainSettings), settings.options)
        if folders := [name for name, value in _values(method.options) if isinstance(value, Path)]:
            raise FederationError(f"{method.name} with {', '.join(folders)}: a server may not name files of a site")
        self.client = plan.client.id
        spec = data.spec(plan, planned(plan, model))
        if start is None:
            start = drawn(method, [spec if one.id == spec.id else _other(one) for one in first] or [spec], settings)
        super().__init__(
            method,
            {self.client: spec},
            settings,
            data.dataset,
            lambda number: {self.client: data.at(number, settings.rounds)},
            start,
        )
        self.check(Channel.DOWN, spec, method.send(start, spec.public, self.now(1)))
        self.run = plan.run
        self.meter = FlopMeter(self)
        self.observers = (self.meter,)
        self.message = Message()
        self.shelves: Mapping[int, Shelf] = {}
        self.fetched: list[Fetched] = []
        self._get = fetch
        self._leaves = leaves
        self._noise = noise

    @property
    def outline(self) -> Outline:
        """What the server must know of this client's model."""
        return outline_of(self.method, self.specs[self.client])

    # --- a step

    def load(self, own: State | None) -> None:
        """Be the client as it was saved, or as it is before it has ever trained."""
        self.fleet.change(self.client, self.fleet.fresh(self.client) if own is None else own)

    def hears(self, raw: bytes, memory: State) -> State:
        """Take a message in; what of it is to be remembered, since it is no part of the model."""
        self.message = Message.from_bytes(raw, memory).to(self.device) if raw else Message()
        self.check(Channel.DOWN, self.specs[self.client], self.message)
        layout = self.fleet.program(self.client).layout
        return {name: tensor for name, tensor in self.message.tensors.items() if name not in layout}

    def trains(self, now: Round) -> tuple[Message, float | None]:
        """A round's training: the reply, and the mean loss if there was one."""
        jobs, replies = self.train([self.client], now)
        loss = self.losses(jobs, now).get(self.client)
        reply = self._let(replies[0].message) if replies else Message()
        self.agrees(reply)
        return reply, loss

    def _let(self, message: Message) -> Message:
        """Without parts that may stay here, where the operator says so."""
        stay = set() if self._leaves is None else self.method.withheld.difference(self._leaves)
        return replace(message, tensors={n: t for n, t in message.tensors.items() if part_of(n) not in stay})

    def agrees(self, message: Message) -> None:
        """Refuse what the site's operator does not let leave, whatever the method says."""
        parts = sorted({part_of(name) for name in message.tensors})
        if self._leaves is not None and (held := [part for part in parts if part not in self._leaves]):
            raise FederationError(f"{', '.join(held)} would leave, but this site lets only {', '.join(self._leaves)}")

    def adopts(self, heard: State, shelves: Mapping[int, Shelf], now: Round) -> None:
        """Fetch from peers and adopt; where that cannot be, the client's own experts stand in."""
        own = {name: tensor.clone() for name, tensor in self.fleet.kept(self.client).items()}
        for at_hand in (shelves, {}):
            self.shelves, self.fetched = at_hand, []
            try:
                return exchange(self, {self.client: heard}, now)
            except (FedExpertsError, RuntimeError, ValueError, KeyError) as error:
                log.warning("round %d: what peers sent cannot be adopted (%s)", now.number, error)
                self.load(own)

    def scored(self, now: Round) -> Scores:
        self.round = now.number
        [found] = self.evaluate()
        return Scores(**{name: getattr(found, name) for name in Scores.model_fields})

    # --- where messages come from

    def send(self, client: int, now: Round) -> Message:
        return self.message

    def message_for(self, client: int) -> Message:
        return self.message

    def noise(self, client: int, now: Round) -> np.random.Generator:
        return self._noise(client, now)

    def fetch(self, client: int, wants: Sequence[Want], now: Round) -> Mapping[Want, Message]:
        found: dict[Want, Message] = {}
        away: set[int] = set()
        for want in wants:
            if want.peer in away:
                continue
            try:
                found[want] = self._fetched(want)
            except UnreachableError as error:  # waited for once, not for each of its experts
                log.warning("round %d: without client %d: %s", now.number, want.peer, error)
                away.add(want.peer)
            except FederationError as error:
                log.warning("round %d: %s of client %d: %s", now.number, want.what, want.peer, error)
        return found

    def _fetched(self, want: Want) -> Message:
        shelf = self.shelves.get(want.peer)
        if shelf is None or want.what not in shelf.digests:
            raise FederationError("the server named nobody who has it")
        raw = self._get(shelf, self.run, want.what)
        if digest(raw) != shelf.digests[want.what]:
            raise FederationError("its bytes are not those that the peer announced")
        message = Message.from_bytes(raw)
        self._fits(message, want)
        self.fetched.append(Fetched(peer=want.peer, what=want.what, parameters=message.parameters, bytes=len(raw)))
        return message

    def _fits(self, message: Message, want: Want) -> None:
        """Names and, where such parts are alike on all clients, shapes; and all of it numbers."""
        if under(message.tensors, want.what).keys() != message.tensors.keys() or message.numbers:
            raise FederationError("the peer sent something else")
        if not all(tensor.isfinite().all() for tensor in message.tensors.values()):
            raise FederationError("the peer sent values that are no numbers")
        if part_of(want.what) in self.method.alike():
            depth = want.what.count(".") + 1
            own = self.fleet.kept(self.client)
            places = {".".join(name.split(".")[:depth]) for name in own if part_of(name) == part_of(want.what)}
            if _layout(inside(message.tensors, want.what)) not in [_layout(inside(own, place)) for place in places]:
                raise FederationError("the peer's tensors have other names or shapes than one's own")

    def outgoing(self) -> dict[str, Message]:
        """What would leave in the first round, by the way that it goes; nothing has been sent, or trained."""
        self.load(None)
        now = self.now(1)
        self.message = self.method.send(self.start, self.specs[self.client].public, now)
        things = {f"peers may fetch {place}": Message.from_bytes(raw) for place, raw in self.served().items()}
        return {"to the server, each round": self._let(self.rehearse(self.client, now)), **things}

    def served(self) -> dict[str, bytes]:
        """All that a peer may ask for, as it would get it."""
        own, parts = self.fleet.kept(self.client), set(self.method.owners) - self.method.forbidden(Channel.PEER)
        places = {
            ".".join(words[:depth])
            for words in (name.split(".") for name in own if part_of(name) in parts)
            for depth in range(1, len(words))
        }
        things = {place: self.method.serve(own, Want(self.client, place)) for place in sorted(places)}
        for message in things.values():
            self.check(Channel.PEER, self.specs[self.client], message)
            self.agrees(message)
        return {place: message.to_bytes() for place, message in things.items() if message}


def _other(client: PublicSpec) -> ClientSpec:
    """Another client, with a model of ours, or with one that only it has."""
    if client.model == OWN_MODEL:
        return client.spec(OwnModel(OWN_MODEL, elsewhere))
    return client.spec(check_model(client.model, client.shape))


def _layout(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def _values(options: Frozen) -> list[tuple[str, object]]:
    return [(name, getattr(options, name)) for name in type(options).model_fields]
