"""What holds for every method in the registry (protocol.md, 3, 5 and 6). A new method gets these by itself."""

from functools import cache
from pathlib import Path

import pytest
import torch
from support import assert_close, assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.engine import Observer, Simulation
from fedexperts.measure import History
from fedexperts.methods import Channel, Message, Owner, part_of, registry, select

every_method = pytest.mark.parametrize("name", registry())
TASK = make_task()


class Recorder(Observer):
    """Keeps every message of a run."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, Channel, int, Message]] = []

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        copy = Message({n: t.clone() for n, t in message.tensors.items()}, dict(message.numbers))
        self.messages.append((round_number, channel, client, copy))


@cache
def reference(name: str) -> dict[str, torch.Tensor]:
    """Where a run ends that trains one client after another."""
    return states(finished(name, TASK))


@every_method
@pytest.mark.parametrize("executor", ["stacked", "workers"])
def test_together_equals_one_by_one(name: str, executor: str) -> None:
    assert_close(states(finished(name, TASK, executor=executor)), reference(name))


@every_method
@pytest.mark.parametrize("group_size", [1, 2])
def test_result_does_not_depend_on_group_size(name: str, group_size: int) -> None:
    assert_close(states(finished(name, TASK, executor="stacked", group_size=group_size)), reference(name))


class Backwards(Simulation):
    """Trains the sampled clients in the opposite order."""

    def sample(self, round_number: int) -> list[int]:
        return super().sample(round_number)[::-1]


@every_method
def test_result_does_not_depend_on_client_order(name: str) -> None:
    assert_close(states(finished(name, TASK, executor="stacked", kind=Backwards)), reference(name))


@every_method
def test_same_seed_same_bits(name: str) -> None:
    assert_same_bits(states(finished(name, TASK)), reference(name))


@every_method
def test_another_seed_another_result(name: str) -> None:
    found = states(finished(name, TASK, seed=1))
    assert any(not torch.equal(found[n], t) for n, t in reference(name).items())


@every_method
@pytest.mark.parametrize("store", ["disk", "device"])
def test_result_does_not_depend_on_the_store(name: str, store: str) -> None:
    assert_same_bits(states(finished(name, TASK, store=store)), reference(name))


@every_method
def test_resumed_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()

    def start(folder: Path) -> tuple[Simulation, History]:
        history = History(folder / "history.csv")
        values = {"observers": (history,), "folder": folder / "state", "rounds": 5, "checkpoint_every": 2}
        return make_simulation(name, TASK, **values), history

    uninterrupted, history = start(whole)
    uninterrupted.run()
    history.close()

    stopped, history = start(broken)
    history.started(stopped)
    for _ in range(3):  # a checkpoint at 2; what the third round did is lost
        stopped.step()
        if stopped.round == 2:
            stopped.checkpoint()
    history.close()
    resumed, history = start(broken)
    resumed.restore()
    assert resumed.round == 2
    resumed.run()
    history.close()

    assert_same_bits(states(resumed), states(uninterrupted))
    assert (broken / "history.csv").read_bytes() == (whole / "history.csv").read_bytes()


@every_method
def test_no_private_part_in_any_message(name: str) -> None:
    recorder = Recorder()
    simulation = finished(name, TASK, observers=(recorder,))
    method = simulation.method
    private = [
        tensor
        for client in range(len(simulation.specs))
        for tensor in select(simulation.fleet.kept(client), method.owned(Owner.PRIVATE)).values()
        if tensor.numel() > 16  # a small one may be equal by chance, a counter or a fresh bias
    ]
    for _, channel, client, message in recorder.messages:
        assert not method.forbidden(channel) & {part_of(n) for n in message.tensors}, (channel, client)
        for tensor in message.tensors.values():
            assert not any(tensor.shape == own.shape and torch.equal(tensor, own) for own in private), (channel, client)


@every_method
def test_ledger_equals_the_sum_of_the_messages(name: str) -> None:
    recorder, history = Recorder(), History()
    finished(name, TASK, observers=(recorder, history))
    for channel in Channel:
        sent = [message for _, used, _, message in recorder.messages if used is channel]
        assert sum(row[f"{channel}_bytes"] for row in history.rows) == sum(len(m.to_bytes()) for m in sent)
        assert sum(row[f"{channel}_parameters"] for row in history.rows) == sum(m.parameters for m in sent)


@every_method
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_every_stage_moves_only_the_parts_it_names(name: str, executor: str) -> None:
    simulation = make_simulation(name, TASK, participation=1.0, executor=executor)
    for number in range(len(simulation.method.stages())):
        for cohorts in simulation.fleet.waves(range(len(TASK.clients))):
            for cohort in cohorts:
                job = simulation._job(cohort, 1)
                job.lessons = [job.lessons[number]]
                before = {n: t.clone() for n, t in cohort.tensors.items()}
                simulation.executor.train([job])
                named = job.lessons[0].stage.parts
                moved = {part_of(n) for n, t in cohort.tensors.items() if not torch.equal(t, before[n])}
                assert moved == set(named)


@every_method
def test_clients_that_were_not_sampled_stay_as_they_are(name: str) -> None:
    simulation = make_simulation(name, TASK, participation=0.34)
    before = {client: simulation.fleet.kept(client) for client in range(len(TASK.clients))}
    simulation.step()
    sampled = simulation.sample(1)
    assert 0 < len(sampled) < len(TASK.clients)
    for client in set(before) - set(sampled):
        assert_same_bits(dict(simulation.fleet.kept(client)), dict(before[client]))


@every_method
def test_looking_changes_nothing(name: str) -> None:
    simulation = finished(name, TASK, executor="stacked")
    before = {n: t.clone() for n, t in states(simulation).items()}
    first = simulation.evaluate()
    assert simulation.evaluate() == first
    assert_same_bits(states(simulation), before)
