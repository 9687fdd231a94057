"""What makes FedBABU itself."""

from pathlib import Path

import pytest
import torch
from support import assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.config import TrainSettings
from fedexperts.engine import Observer, Simulation
from fedexperts.methods import Channel, Message, Model, Round, part_of, select
from fedexperts.methods.fedbabu import FedBABU

TASK = make_task("cnn5/8")
FEW = {"rounds": 3, "participation": 0.34}


class Traffic(Observer):
    """(round, channel, client, part) of all that travelled."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, Channel, int, str]] = set()

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        self.seen |= {(round_number, channel, client, part_of(name)) for name in message.tensors}


def test_the_head_is_one_for_all_and_never_moves_while_federating() -> None:
    simulation = make_simulation("fedbabu", TASK, **FEW)
    first = {name: t.clone() for name, t in select(simulation.client_state(0), {"head"}).items()}
    start = simulation.server
    for _ in range(2):
        simulation.step()
        for client in range(6):
            assert_same_bits(select(simulation.client_state(client), {"head"}), first)
    assert not torch.equal(simulation.server["extractor.fc1.weight"], start["extractor.fc1.weight"])


def test_in_the_last_round_all_clients_get_the_body_and_nobody_replies() -> None:
    traffic = Traffic()
    simulation = finished("fedbabu", TASK, observers=(traffic,), **FEW)
    assert {part for *_, part in traffic.seen} == {"extractor"}
    by_round = {
        (now, channel): {client for n, c, client, _ in traffic.seen if (n, c) == (now, channel)}
        for now in (1, 2, 3)
        for channel in (Channel.DOWN, Channel.UP)
    }
    for now in (1, 2):
        assert by_round[now, Channel.DOWN] == by_round[now, Channel.UP] == set(simulation.sample(now))
        assert len(simulation.sample(now)) == 2
    assert by_round[3, Channel.DOWN] == set(range(6))
    assert by_round[3, Channel.UP] == set()


@pytest.mark.parametrize(
    ("tuned", "parts"), [("full", {"extractor", "head"}), ("body", {"extractor"}), ("head", {"head"})]
)
def test_everyone_fine_tunes_the_last_shared_body_and_keeps_the_result(tuned: str, parts: set[str]) -> None:
    simulation = make_simulation("fedbabu", TASK, options={"tuned": tuned}, **FEW)
    for _ in range(2):
        simulation.step()
    shared = [simulation.client_state(client) for client in range(6)]
    body = dict(simulation.server)
    simulation.step()
    assert_same_bits(dict(simulation.server), body)
    for client in range(6):
        own = simulation.client_state(client)
        assert {part_of(name) for name, t in own.items() if not torch.equal(t, shared[client][name])} == parts


def test_what_is_evaluated_at_the_end_is_the_fine_tuned_model() -> None:
    simulation = finished("fedbabu", TASK, options={"tuning_lr": 0.05}, **FEW)
    for client, result in enumerate(simulation.evaluate()):
        model = Model(simulation.method.parts(simulation.specs[client])).double().eval()
        model.load_state_dict(dict(simulation.fleet.kept(client)))
        index = torch.from_numpy(TASK.clients[client].test)
        answers = simulation.method.predict(model, simulation.data.x(index), {}).argmax(1)
        assert result.test_correct == int((answers == simulation.data.y(index)).sum())


@pytest.mark.parametrize("done", [2, 3])
def test_a_run_that_stopped_before_or_after_the_fine_tuning_goes_on_as_if_it_had_not(done: int, tmp_path: Path) -> None:
    def start(folder: Path) -> Simulation:
        return make_simulation("fedbabu", TASK, folder=folder, **FEW)

    stopped, whole = start(tmp_path / "stopped"), start(tmp_path / "whole")
    for _ in range(done):
        stopped.step()
    stopped.checkpoint()
    resumed = start(tmp_path / "stopped")
    resumed.restore()
    resumed.run()
    whole.run()
    assert_same_bits(states(resumed), states(whole))
    assert resumed.evaluate() == whole.evaluate()


def test_fine_tuning_has_epochs_and_a_rate_of_its_own() -> None:
    train = TrainSettings.check({"epochs": 2, "lr": 0.2})
    federating, last = Round(4, 5, seed=0), Round(5, 5, seed=0)
    [stage] = FedBABU(train).stages(federating)
    assert (stage.parts, stage.epochs, stage.rates) == (("extractor",), 2, {})
    [stage] = FedBABU(train).stages(last)
    assert (stage.parts, stage.epochs) == (("extractor", "head"), 5)
    assert stage.rates == pytest.approx({"extractor": 0.02, "head": 0.02})
    [stage] = FedBABU(train, {"tuned": "head", "tuning_epochs": 9, "tuning_lr": 0.5}).stages(last)
    assert (stage.parts, stage.epochs, stage.rates) == (("head",), 9, {"head": 0.5})
