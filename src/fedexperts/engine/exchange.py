"""Clients fetch from each other what the method wants, when all of them have trained."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedexperts.engine.executors import numerics
from fedexperts.engine.phases import phase
from fedexperts.methods import NOTHING, Channel, Round, State, Trained, Want
from fedexperts.randomness import stream

if TYPE_CHECKING:
    from fedexperts.engine.clients import Clients


@phase("aggregation")
def exchange(clients: "Clients", received: Mapping[int, State], now: Round) -> None:
    """Everybody adopts from the peers' tensors as they were after training: nobody changes before all have fetched.

    `received`: what each client that has trained heard from the server in this round. A peer need not be among them:
    it serves what it has.
    """
    method, fleet = clients.method, clients.fleet

    def after_training(client: int, x: Tensor) -> tuple[Trained, torch.device]:
        """And where the client is: on the device, or in the store."""
        own = fleet.present(client)
        here = next(iter(own.values())).device
        heard = {name: tensor.to(here) for name, tensor in received[client].items()}
        return Trained(clients.specs[client], own, heard, x=x.to(here)), here

    wanted = {client: method.wants(after_training(client, NOTHING.counts)[0], now) for client in received}
    clients.expect(wanted, now)
    changes: dict[int, State] = {}
    for client in received:
        spec = clients.specs[client]
        after, here = after_training(client, _revisited(clients, client, now))
        found = clients.fetch(client, wanted[client], now)
        fetched = {want: message.to(here) for want, message in found.items()}
        for want, message in fetched.items():
            clients.passes(now.number, Channel.PEER, spec, message)
            for observer in clients.observers:
                observer.fetched(now.number, client, want)
        with numerics(clients.settings.precision):
            adopted = method.adopt(after, fetched, now)
        if adopted:
            changes[client] = adopted
    for client, adopted in changes.items():
        fleet.change(client, adopted)


def _revisited(clients: "Clients", client: int, now: Round) -> Tensor:
    """Some of the client's training samples, if the method wants to see any again."""
    count, train = clients.method.revisits, clients.data_at(now.number)[client].train
    chosen = now.stream("revisits", client).permutation(train)[:count] if count else train[:0]
    return clients.data.x(torch.from_numpy(chosen).to(clients.device))


def reached(wanted: Sequence[Want], drop: float, client: int, now: Round) -> list[Want]:
    """What of it comes through, where a part `drop` of the fetches fails."""
    luck = stream(now.seed, "drop", client, now.number).random(len(wanted)) if drop else [1.0] * len(wanted)
    return [want for want, chance in zip(wanted, luck, strict=True) if chance >= drop]
