"""A new client joins a finished run: it gets what the server sends, and trains what clients keep for themselves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedexperts.client import Client, together
from fedexperts.config import Settings, TaskSettings, TrainSettings
from fedexperts.data import ClientData
from fedexperts.engine.observer import Observer
from fedexperts.engine.rounds import Simulation
from fedexperts.errors import DataError, MethodError
from fedexperts.methods import Message, Method, Reply, Round, Stage, State, Trained, part_of
from fedexperts.task import Task

NOBODYS = ClientData(*(np.empty(0, np.int64) for _ in range(3)))
"""The data of the run's own clients, who are not asked."""


class Joining(Simulation):
    """The rounds of one client alone, under the number after the run's last; the run's server does not change."""

    @classmethod
    def of(cls, run: Simulation, client: Client, observers: Sequence[Observer] = (), **values: Any) -> "Joining":
        """`values`: how to train, where that differs from the run."""
        _check(run, client)
        places = len(run.specs) + 1
        given = {**run.settings.model_dump(), "clients": places, "participation": 1.0, "store": "memory", **values}
        settings = Settings.check(given)
        dataset, [own] = together([client], settings.part(TaskSettings), like=run.task.dataset)
        model = run.specs[0].model if client.model is None else client.model_for(dataset.shape, dataset.classes)
        task = Task(
            settings.part(TaskSettings),
            dataset,
            (*[NOBODYS] * len(run.specs), own),
            names=(*(spec.name or str(spec.id) for spec in run.specs), client.name),
            models=(model,),
            common=run.specs[0].common,
        )
        method = _joins(type(run.method), run.server)(settings.part(TrainSettings), run.method.options.model_dump())
        joining = cls(method, task, settings, observers)
        joining._fits()
        return joining

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
        rounds = (self._round(number) for number in range(1, self.settings.rounds + 1))
        return list(dict.fromkeys(part for now in rounds for stage in self.method.stages(now) for part in stage.parts))

    def _fits(self) -> None:
        """An error where the run's shared parts do not fit the new client's model."""
        layout, kept = self.fleet.program(self.client).layout, self.method.kept()
        sent = self.message_for(self.client).tensors
        for name, (shape, _) in layout.items():
            if part_of(name) not in kept and name in sent and tuple(sent[name].shape) != shape:
                raise MethodError(
                    f"{self.specs[self.client].called} cannot have the run's {part_of(name)}: {name} is "
                    f"{tuple(sent[name].shape)} there and {shape} in its model; give it a model like the run's"
                )


def _check(run: Simulation, client: Client) -> None:
    if run.method.begins() is not None:
        raise MethodError(
            f"nobody can join a {run.method.title} run: its pool was made of those who were there; adapt the run that "
            "it began with"
        )
    if client.name in (spec.name or str(spec.id) for spec in run.specs):
        raise DataError(f"the run has a client '{client.name}' already; the new one needs another name")


def _joins(kind: type[Method], server: State) -> type[Method]:
    """The same method for a client that comes when all is over: it hears of the server, nothing leaves it."""

    class Joins(kind):  # type: ignore[misc, valid-type]
        exchanges = False  # it may not ask the others either

        def start(self, model: Any) -> State:
            return dict(server)

        def stages(self, now: Round) -> Sequence[Stage]:
            kept = self.kept()
            own = [(stage, tuple(part for part in stage.parts if part in kept)) for stage in super().stages(now)]
            return [replace(stage, parts=parts) for stage, parts in own if parts]

        def reply(self, after: Trained, now: Round) -> Message:
            return Message()

        def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
            return server

    return Joins
