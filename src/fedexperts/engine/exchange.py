"""Clients fetch from each other what the method wants, when all of them have trained."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedexperts.engine.cohort import Job
from fedexperts.engine.executors import numerics
from fedexperts.methods import Channel, Round, State, Trained, Want
from fedexperts.randomness import stream

if TYPE_CHECKING:
    from fedexperts.engine.rounds import Simulation


def exchange(simulation: "Simulation", jobs: Sequence[Job], now: Round) -> None:
    """Everybody adopts from the peers' tensors as they were after training: nobody changes before all have fetched.

    A peer need not be among the round's clients: it serves what it has.
    """
    method, fleet = simulation.method, simulation.fleet
    changes: dict[int, State] = {}
    for job in jobs:
        for position, client in enumerate(job.cohort.clients):
            own, x = fleet.present(client.id), _revisited(simulation, client.id, now)
            after = Trained(client, own, job.received.by(position), x=x)
            reached = _reached(method.wants(after, now), simulation.settings.peer_drop, client.id, now)
            here = next(iter(after.own.values())).device  # some clients may be on the device, others in the store
            fetched = {want: method.serve(fleet.present(want.peer), want).to(here) for want in reached}
            for want, message in fetched.items():
                simulation.passes(now.number, Channel.PEER, client, message)
                for observer in simulation.observers:
                    observer.fetched(now.number, client.id, want)
            with numerics(simulation.settings.precision):
                adopted = method.adopt(after, fetched, now)
            if adopted:
                changes[client.id] = adopted
    for client_id, adopted in changes.items():
        fleet.change(client_id, adopted)


def _revisited(simulation: "Simulation", client: int, now: Round) -> Tensor:
    """Some of the client's training samples, if the method wants to see any again."""
    count, train = simulation.method.revisits, simulation.batches.data(now.number)[client].train
    chosen = now.stream("revisits", client).permutation(train)[:count] if count else train[:0]
    return simulation.data.x(torch.from_numpy(chosen).to(simulation.device))


def _reached(wanted: Sequence[Want], drop: float, client: int, now: Round) -> list[Want]:
    """What of it comes through, where a part `drop` of the fetches fails."""
    luck = stream(now.seed, "drop", client, now.number).random(len(wanted)) if drop else [1.0] * len(wanted)
    return [want for want, chance in zip(wanted, luck, strict=True) if chance >= drop]
