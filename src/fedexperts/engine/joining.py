"""A new client joins a finished run: it gets what the server sends, and trains what clients keep for themselves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedexperts.client import Client, together
from fedexperts.config import Settings, TaskSettings, TrainSettings
from fedexperts.data import ClientData
from fedexperts.engine.observer import Observer
from fedexperts.engine.rounds import Simulation
from fedexperts.errors import DataError, MethodError
from fedexperts.methods import Message, Method, Model, Reply, Round, Stage, State, Trained, part_of
from fedexperts.task import ClientSpec, Task

NOBODYS = ClientData(*(np.empty(0, np.int64) for _ in range(3)))
"""The data of the run's own clients, who are not asked."""


class Joining(Simulation):
    """The rounds of one client alone, under the number after the run's last; the run's server does not change."""

    @classmethod
    def of(cls, run: Simulation, client: Client, observers: Sequence[Observer] = (), **values: Any) -> "Joining":
        """`values`: how to train, where that differs from the run."""
        if run.method.begins() is not None:
            raise MethodError(
                f"nobody can join a {run.method.title} run: its pool was made of those who were there; adapt the run "
                "that it began with"
            )
        if client.name in run.task.client_names:
            raise DataError(f"the run has a client '{client.name}' already; the new one needs another name")
        places = {"clients": len(run.specs) + 1, "participation": 1.0, "store": "memory", "group_size": None}
        settings = Settings.check({**run.settings.model_dump(), **places, **values})
        dataset, [own] = together([client], settings.part(TaskSettings), like=run.task.dataset)
        model = run.specs[0].model if client.model is None else client.model_for(dataset.shape, dataset.classes)
        task = Task(
            settings.part(TaskSettings),
            dataset,
            (*[NOBODYS] * len(run.specs), own),
            names=(*run.task.client_names, client.name),
            models=(model,),
            common=run.specs[0].common,
        )
        kind = _joins(type(run.method), run.server, _private(run, task.spec(len(run.specs))))
        method = kind(settings.part(TrainSettings), run.method.options.model_dump())
        return cls(method, task, settings, observers)

    @property
    def client(self) -> int:
        """The new one's number."""
        return len(self.specs) - 1

    @property
    def everybody(self) -> Sequence[int]:
        return [self.client]

    def sample(self, round_number: int) -> list[int]:
        return [self.client]

    @property
    def trains(self) -> list[str]:
        """The parts that the new client trains; the others it has from the run."""
        rounds = (self.now(number) for number in range(1, self.settings.rounds + 1))
        return list(dict.fromkeys(part for now in rounds for stage in self.method.stages(now) for part in stage.parts))


def _private(run: Simulation, client: ClientSpec) -> set[str]:
    """The parts that a client has for itself: it keeps them, and does not use the server's in their place."""
    method, message = run.method, run.message_to(client)
    with torch.random.fork_rng(devices=[]):
        own = Model(method.parts(client)).to(run.data.dtype).to(run.device).state_dict()
    for name, sent in message.tensors.items():
        if name in own and sent.shape != own[name].shape:
            raise MethodError(
                f"{client.called} cannot have the run's {part_of(name)}: {name} is {tuple(sent.shape)} there and "
                f"{tuple(own[name].shape)} in its model; give it a model like the run's"
            )
    used = method.personalise(own, message)
    if absent := {part_of(name) for name in own.keys() - used.keys()} - method.kept():
        raise MethodError(
            f"the run has no {' and no '.join(sorted(absent))} for {client.called}, whose model is {client.model}; its "
            f"clients' are {', '.join(sorted({str(spec.model) for spec in run.specs.values()}))}: give it one of these"
        )
    others = {name for name in own if name not in used or used[name] is not message.tensors.get(name)}
    return method.kept() & {part_of(name) for name in others}


def _joins(kind: type[Method], server: State, private: set[str]) -> type[Method]:
    """The same method for a client that comes when all is over: it hears of the server, nothing leaves it."""

    class Joins(kind):  # type: ignore[misc, valid-type]
        exchanges = False  # it does not ask the others either

        def start(self, model: Model) -> State:
            return dict(server)

        def stages(self, now: Round) -> Sequence[Stage]:
            own = [(stage, tuple(part for part in stage.parts if part in private)) for stage in super().stages(now)]
            return [replace(stage, parts=parts) for stage, parts in own if parts]

        def replies(self, together: Sequence[Trained], now: Round) -> Sequence[Message]:
            return [Message()] * len(together)

        def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
            return server

    return Joins
