"""What holds for every method in the registry (protocol.md, 3, 5 and 6). A new method gets these by itself."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from everything import Everything
from support import assert_close, assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.engine import Observer, Simulation
from fedexperts.measure import Fetches, History, Row
from fedexperts.methods import (
    Channel,
    Message,
    Method,
    Owner,
    Reply,
    Round,
    State,
    Trained,
    Want,
    part_of,
    registry,
    select,
)  # fmt: skip
from fedexperts.task import ClientSpec

every_method = pytest.mark.parametrize("kind", [*registry().values(), Everything], ids=lambda kind: kind.name)
TASK = make_task()


class Recorder(Observer):
    """Weighs every message of a run: its channel, its bytes, its numbers."""

    def __init__(self) -> None:
        self.sent: list[tuple[Channel, int, int]] = []

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        self.sent.append((channel, len(message.to_bytes()), message.parameters))


class Guard(Observer):
    """Compares what leaves a client with its private parts at that moment, under whatever name or shape it goes."""

    def __init__(self) -> None:
        self.seen = 0
        self.leaks: list[tuple[Channel, int, str]] = []

    def started(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        method = self.simulation.method
        sent_parts = {part_of(name) for name in message.tensors}
        self.leaks += [(channel, client, part) for part in method.forbidden(channel) & sent_parts]
        self.seen += 1
        if channel is Channel.DOWN:  # a client may make what it gets a part of its own
            return
        closed = {Owner.PRIVATE} if channel is Channel.PEER else {Owner.PRIVATE, Owner.PEER}
        private = select(self.simulation.fleet.kept(client), method.owned(*closed))
        for name, tensor in private.items():
            for sent in message.tensors.values():
                # A tensor of a few values may be equal by chance: a counter, a fresh bias.
                same = tensor.numel() > 2 and sent.numel() == tensor.numel()
                if same and torch.equal(sent.flatten(), tensor.flatten()):
                    self.leaks.append((channel, client, name))


@dataclass(frozen=True)
class Watched:
    """A run that trains one client after another: where it ends, and what was seen on the way."""

    states: dict[str, torch.Tensor]
    sent: list[tuple[Channel, int, int]]
    guarded: int
    leaks: list[tuple[Channel, int, str]]
    rows: Sequence[Row]


@cache
def watched(kind: type[Method]) -> Watched:
    recorder, guard, history = Recorder(), Guard(), History()
    end = states(finished(kind, TASK, observers=(recorder, guard, history)))
    return Watched(end, recorder.sent, guard.seen, guard.leaks, history.rows)


def reference(kind: type[Method]) -> dict[str, torch.Tensor]:
    return watched(kind).states


@every_method
@pytest.mark.parametrize("executor", ["stacked", "workers"])
def test_together_equals_one_by_one(kind: type[Method], executor: str) -> None:
    assert_close(states(finished(kind, TASK, executor=executor)), reference(kind))


@every_method
def test_result_does_not_depend_on_group_size(kind: type[Method]) -> None:
    assert_close(states(finished(kind, TASK, executor="stacked", group_size=2)), reference(kind))


class Backwards(Simulation):
    """Trains the sampled clients in the opposite order."""

    def sample(self, round_number: int) -> list[int]:
        return super().sample(round_number)[::-1]


@every_method
def test_result_does_not_depend_on_client_order(kind: type[Method]) -> None:
    assert_close(states(finished(kind, TASK, executor="stacked", simulation=Backwards)), reference(kind))


@every_method
def test_same_seed_same_bits(kind: type[Method]) -> None:
    assert_same_bits(states(finished(kind, TASK)), reference(kind))


@every_method
def test_another_seed_another_result(kind: type[Method]) -> None:
    found = states(finished(kind, TASK, seed=1))
    assert any(not torch.equal(found[n], t) for n, t in reference(kind).items())


@every_method
@pytest.mark.parametrize("where", [{"store": "disk"}, {"store": "device", "group_size": 1}], ids=str)
def test_result_does_not_depend_on_the_store(kind: type[Method], where: dict[str, Any]) -> None:
    assert_same_bits(states(finished(kind, TASK, **where)), reference(kind))


@every_method
def test_resumed_equals_uninterrupted(kind: type[Method], tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()

    def start(folder: Path) -> tuple[Simulation, History]:
        history = History(folder / "history.csv")
        values = {
            "observers": (history, Fetches(folder / "fetches.csv")),
            "folder": folder / "state",
            "rounds": 5,
            "checkpoint_every": 2,
            "evaluate_every": 3,
        }
        return make_simulation(kind, TASK, **values), history

    uninterrupted, _ = start(whole)
    uninterrupted.run()

    stopped, history = start(broken)
    history.started(stopped)
    for _ in range(3):  # a checkpoint at 2; what the third round did is lost
        stopped.step()
        if stopped.round == 2:
            stopped.checkpoint()
    resumed, _ = start(broken)
    resumed.restore()
    assert resumed.round == 2
    resumed.run()

    assert_same_bits(states(resumed), states(uninterrupted))
    tables = [{path.name: path.read_bytes() for path in folder.glob("*.csv")} for folder in (whole, broken)]
    assert tables[0] == tables[1]
    assert ("fetches.csv" in tables[0]) == (Owner.PEER in kind.owners.values())


@every_method
def test_no_private_part_in_any_message(kind: type[Method]) -> None:
    found = watched(kind)
    assert found.guarded == len(found.sent)
    assert not found.leaks


def over_a_wire(kind: type[Method]) -> type[Method]:
    """The method as separate processes would run it: nothing but bytes between the server and its clients."""
    memories: defaultdict[int, State] = defaultdict(dict)  # each client's own

    class Wired(kind):  # type: ignore[valid-type, misc]
        def send(self, server: State, client: ClientSpec, now: Round) -> Message:
            raw, memory = super().send(server, client, now).to_bytes(), memories[client.id]
            message = Message.from_bytes(raw, memory)
            memory |= message.tensors
            return message

        def replies(self, together: Sequence[Trained], now: Round) -> Sequence[Message]:
            return [Message.from_bytes(message.to_bytes()) for message in super().replies(together, now)]

        def serve(self, own: Mapping[str, torch.Tensor], want: Want) -> Message:
            return Message.from_bytes(super().serve(own, want).to_bytes())

        def combine(self, server: State, replies: list[Reply], now: Round) -> State:
            return super().combine({n: t.clone() for n, t in server.items()}, replies, now)

    return Wired


class Amnesia(Simulation):
    """Makes a new method object for every use: a method has no memory but its clients' and the server's."""

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        return type(value)(value.train, value.options.model_dump()) if name == "method" else value


@every_method
def test_a_method_needs_nothing_but_its_messages(kind: type[Method]) -> None:
    assert_close(states(finished(over_a_wire(kind), TASK, simulation=Amnesia, executor="stacked")), reference(kind))


@every_method
def test_ledger_equals_the_sum_of_the_messages(kind: type[Method]) -> None:
    found = watched(kind)
    for channel in Channel:
        sent = [rest for used, *rest in found.sent if used is channel]
        for column, unit in enumerate(("bytes", "parameters")):
            noted = sum(row[f"{channel}_{unit}"] for row in found.rows)
            assert noted == sum(message[column] for message in sent)


@every_method
@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize("round_number", [1, 3], ids=["first", "last"])
def test_every_stage_moves_only_the_parts_it_names(kind: type[Method], executor: str, round_number: int) -> None:
    simulation = make_simulation(kind, TASK, participation=1.0, executor=executor)
    for _ in range(round_number - 1):
        simulation.step()
    now = simulation.now(round_number)
    stages = simulation.method.stages(now)
    assert stages or round_number <= kind.beforehand, "nobody would learn anything"
    for number, stage in enumerate(stages):
        moved: set[str] = set()
        for cohorts in simulation.fleet.waves(range(len(TASK.clients))):
            for cohort in cohorts:
                job = simulation._job(cohort, now)
                earlier, job.lessons = job.lessons[:number], job.lessons[number : number + 1]
                simulation.executor.train([replace(job, lessons=earlier)])
                before = {n: t.clone() for n, t in cohort.tensors.items()}
                simulation.executor.train([job])
                moved |= {part_of(n) for n, t in cohort.tensors.items() if not torch.equal(t, before[n])}
        # Some clients may have no sample that uses a part; some parts begin as copies of others.
        assert moved - stage.copies.keys() == set(stage.parts)


@every_method
def test_clients_that_were_not_sampled_stay_as_they_are(kind: type[Method]) -> None:
    simulation = make_simulation(kind, TASK, participation=0.34)
    while simulation.method.everyone(simulation.now(simulation.round + 1)):
        simulation.step()
    before = {client: dict(simulation.fleet.kept(client)) for client in range(len(TASK.clients))}
    simulation.step()
    sampled = simulation.sample(simulation.round)
    assert 0 < len(sampled) < len(TASK.clients)
    for client in set(before) - set(sampled):
        assert_same_bits(dict(simulation.fleet.kept(client)), before[client])


@every_method
def test_looking_changes_nothing(kind: type[Method]) -> None:
    simulation = finished(kind, TASK, executor="stacked")
    before = {n: t.clone() for n, t in states(simulation).items()}
    first = simulation.evaluate()
    assert simulation.evaluate() == first
    assert_same_bits(states(simulation), before)


@every_method
def test_the_server_holds_no_more_than_it_keeps(kind: type[Method]) -> None:
    """A row of what all clients sent, kept as a view, would keep all of it."""
    kept = finished(kind, TASK, participation=1.0).server.values()
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    assert sum(storages.values()) <= sum({tensor.data_ptr(): tensor.nbytes for tensor in kept}.values())
