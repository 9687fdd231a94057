"""A simulation that several processes do together: each trains a part of a round's clients."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

from fedexperts.engine.cohort import Job
from fedexperts.engine.observer import Evaluation
from fedexperts.engine.phases import phase
from fedexperts.engine.ranks import Parcel, Ranks, divided
from fedexperts.engine.rounds import Simulation
from fedexperts.engine.saved import Record, read_manifest
from fedexperts.methods import Message, Reply, Round, State, Want


class DividedSimulation(Simulation):
    """All ranks go through the same rounds and have the server's state, which the leader makes.

    What a client keeps is at one rank, its home: where it last trained. Every random number belongs to a seed, a
    purpose, a client and a round, so nothing depends on who trains whom, and a run may go on with more or fewer ranks.
    """

    def __init__(self, *args: Any, ranks: Ranks, **values: Any) -> None:
        super().__init__(*args, **values)
        ranks.check_devices(self.settings.device, self.device)
        self.ranks = ranks
        self.leads = ranks.leads
        self.store.writer, self.store.writers = ranks.rank, ranks.size
        self.homes = divided({k: float(spec.samples) for k, spec in self.specs.items()}, ranks.size)
        self._from_afar: dict[Want, Message] = {}  # what peers at other ranks serve in this round

    def _work(self, clients: Sequence[int]) -> dict[int, float]:
        """How much a client's training is, compared with others'."""
        sizes = {k: sum(prod(shape) for shape, _ in self.fleet.program(k).layout.values()) for k in clients}
        return {k: float(self.specs[k].samples * sizes[k]) for k in clients}

    # --- a round

    @property
    def everybody(self) -> Sequence[int]:
        return self.here(list(self.specs))

    def here(self, clients: Sequence[int]) -> list[int]:
        return [client for client in clients if self.homes[client] == self.ranks.rank]

    def train(self, clients: Sequence[int], now: Round) -> tuple[list[Job], list[Reply]]:
        """Those that are this rank's of the sampled train here; the replies are everybody's."""
        self._move(divided(self._work(clients), self.ranks.size))
        done, own = self.ranks.agreed(lambda: super(DividedSimulation, self).train(self.here(clients), now))
        with phase("waiting"):
            everyones = self._gather({reply.client: reply.message for reply in own})
        return done, [Reply(*reply) for reply in everyones]

    def expect(self, wanted: Mapping[int, Sequence[Want]], now: Round) -> None:
        """Fetch what clients here want from peers that are elsewhere."""
        afar = {want for wants in wanted.values() for want in wants if self.homes[want.peer] != self.ranks.rank}
        asked = {Want(*want) for wants in self.ranks.notes(sorted(map(list, afar))) for want in wants}
        served = [want for want in sorted(asked) if self.homes[want.peer] == self.ranks.rank]
        messages = self._gather({want: self.serve(want) for want in served})
        self._from_afar = {want: message for (peer, what), message in messages if (want := Want(peer, what)) in afar}

    def serve(self, want: Want) -> Message:
        return self._from_afar[want] if want in self._from_afar else super().serve(want)

    def combine(self, replies: Sequence[Reply], now: Round) -> None:
        """Only at the leader, in case that ranks do not compute the same digits."""
        if self.leads:
            super().combine(replies, now)
        self.round = now.number
        self.server = self.ranks.spread(self.server, self.device)
        self._from_afar = {}

    def announce(self, losses: Mapping[int, float], results: list[Evaluation] | None) -> None:
        """Every rank's observers hear what all clients did."""
        others = self.ranks.notes(
            {
                "losses": list(losses.items()),
                "results": None if results is None else [asdict(result) for result in results],
                "noted": [observer.noted() for observer in self.observers],
            }
        )
        for rank, said in enumerate(others):
            if rank != self.ranks.rank:
                losses = {**losses, **dict(said["losses"])}
                results = None if results is None else [*results, *(Evaluation(**one) for one in said["results"])]
                for observer, noted in zip(self.observers, said["noted"], strict=False):
                    observer.add(noted)
        if results is not None:
            results.sort(key=lambda result: result.client)
        super().announce(dict(sorted(losses.items())), results)

    def losses(self, jobs: Sequence[Job], now: Round) -> dict[int, float]:
        return self.ranks.agreed(lambda: super(DividedSimulation, self).losses(jobs, now))

    def scores(self, answers: list[Any]) -> list[Evaluation]:
        return self.ranks.agreed(lambda: super(DividedSimulation, self).scores(answers))

    # --- where clients are

    @phase("data")
    def _move(self, homes: Mapping[int, int]) -> None:
        """Bring what clients keep to where they train now."""
        moving = [client for client, home in sorted(homes.items()) if self.homes[client] != home]
        leaving = {client: self.fleet.leave(client) for client in self.here(moving)}
        arriving = self._gather({k: Message(kept) for k, kept in leaving.items() if kept}) if moving else []
        self.homes |= homes
        for client, message in arriving:
            if self.homes[client] == self.ranks.rank:
                self.store.put(client, dict(message.tensors))

    def run(self) -> None:
        super().run()
        self._come_together()

    def _come_together(self) -> None:
        """At the end every rank has all clients, as a simulation of one process has them."""
        if self.folder is not None:
            self.store.load(self.index.read(read_manifest(self.folder)["clients"]))
        else:
            for client, message in self._gather({k: Message(self.fleet.kept(k)) for k in self.everybody}):
                if self.homes[client] != self.ranks.rank:
                    self.store.put(client, dict(message.tensors))
        self.homes = dict.fromkeys(self.specs, self.ranks.rank)

    def _gather(self, messages: Mapping[Any, Message]) -> list[tuple[Any, Message]]:
        """Everybody's messages, each with what it is known by."""
        parcels = [
            Parcel([key, dict(message.numbers), list(message.known)], {**message.tensors, **message.known})
            for key, message in messages.items()
        ]
        found = []
        for parcel in self.ranks.gather(parcels, self.device):
            key, numbers, names = parcel.note
            known: State = {name: parcel.tensors[name] for name in names}
            tensors = {name: tensor for name, tensor in parcel.tensors.items() if name not in known}
            found.append((key, Message(tensors, numbers, known)))
        return found

    # --- the state of a run

    def write_checkpoint(self, changed: Mapping[int, Record]) -> None:
        """Every rank has written its clients' files into the run's folder, which all of them see."""
        everyones = {client: record for own in self.ranks.notes(list(changed.items())) for client, record in own}
        self.ranks.agreed(lambda: super(DividedSimulation, self).write_checkpoint(everyones) if self.leads else None)

    def restore(self) -> None:
        self.ranks.agreed(super().restore)  # and nobody writes before all have read
