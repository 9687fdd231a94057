"""Sampling, privacy at the boundary, divergence, groups, precision."""

import numpy as np
import pytest
import torch
from support import finished, make_simulation, make_task, states

from fedexperts.engine import Job, Observer, specs_for
from fedexperts.errors import DivergedError, MethodError, PrivacyError
from fedexperts.methods import Message, Method, Owner, Round, State, Trained, method_class, select
from fedexperts.methods.fedavg import FedAvg
from fedexperts.methods.fedmoe import FedMoE
from fedexperts.methods.standalone import Standalone
from fedexperts.task import ClientSpec

TASK = make_task("cnn5,cnn4")


@pytest.mark.parametrize(("participation", "expected"), [(1.0, 6), (0.5, 3), (0.01, 1)])
def test_sampling_draws_c_n_different_clients(participation: float, expected: int) -> None:
    simulation = make_simulation("fedavg", TASK, participation=participation)
    rounds = [simulation.sample(now) for now in range(1, 9)]
    assert all(len(set(sampled)) == expected for sampled in rounds)
    assert expected == 6 or len({tuple(sampled) for sampled in rounds}) > 1


class Gathering(FedAvg):
    """Everyone takes part in the second round."""

    name = "gathering"

    def everyone(self, now: Round) -> bool:
        return now.number == 2


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_method_can_want_everyone_and_still_few_are_on_the_device_at_a_time(executor: str) -> None:
    trained: list[tuple[int, list[int]]] = []

    class Cohorts(Observer):
        def trained(self, round_number: int, job: Job) -> None:
            trained.append((round_number, [client.id for client in job.cohort.clients]))

    values = {"participation": 0.34, "observers": (Cohorts(),), "executor": executor}
    found = finished(Gathering, make_task("cnn5"), **values)
    clients = {now: sorted(k for n, ids in trained for k in ids if n == now) for now in (1, 2, 3)}
    assert clients == {1: found.sample(1), 2: list(range(6)), 3: found.sample(3)}
    assert len(clients[1]) == len(clients[3]) == 2
    assert max(len(ids) for _, ids in trained) <= 2


class Leaky(Standalone):
    """Says that its head is private, and sends it."""

    name = "leaky"

    def reply(self, after: Trained, now: Round) -> Message:
        return Message({"head.weight": after.own["head.weight"]})


def test_a_private_part_in_a_message_is_refused() -> None:
    with pytest.raises(PrivacyError, match=r"'leaky' put \['head'\].*head is private"):
        finished(Leaky, TASK)


def test_the_server_does_not_know_its_clients_labels() -> None:
    known: list[ClientSpec] = []

    class Curious(FedAvg):
        name = "curious"

        def send(self, server: State, client: ClientSpec, now: Round) -> Message:
            known.append(client)
            return super().send(server, client, now)

    simulation = finished(Curious, TASK, rounds=2)
    assert sum(simulation.specs[0].label_counts) == simulation.specs[0].samples
    assert {client.label_counts for client in known} == {()}


class Pushy(Standalone):
    """Its server sends what must be private."""

    name = "pushy"

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        return Message({"head.bias": torch.zeros(4)})


class Chatty(Standalone):
    """Sends a tensor as numbers."""

    name = "chatty"

    def reply(self, after: Trained, now: Round) -> Message:
        return Message({}, {str(i): x for i, x in enumerate(after.own["head.weight"].flatten().tolist())})


class Unowned(Standalone):
    name = "unowned"
    owners = {"extractor": Owner.PRIVATE}


class Forgetful(FedAvg):
    """Sends only half of what its clients do not keep."""

    name = "forgetful"

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        return Message(select(server, {"head"}))


class Uneven(FedAvg):
    """Not every client sends everything."""

    name = "uneven"

    def reply(self, after: Trained, now: Round) -> Message:
        return super().reply(after, now) if after.client.id % 2 else Message({}, {"samples": 1})


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        (Pushy, PrivacyError, r"'pushy' put \['head'\] into a message 'down'"),
        (Chatty, PrivacyError, "sends 2000 numbers where at most 8 may go"),
        (Unowned, MethodError, "says who owns extractor, but client 0's model has the parts extractor, head"),
        (Forgetful, MethodError, r"client \d neither keeps nor receives extractor\.conv1\.bias"),
        (Uneven, MethodError, "do not both send"),
    ],
)
def test_a_method_that_breaks_the_rules_is_told_so(kind: type[Method], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        finished(kind, TASK)


def test_weights_that_are_no_numbers_are_seen_even_after_the_last_round() -> None:
    with pytest.raises(DivergedError, match="gives no numbers any more after round 1"):
        finished("standalone", make_task("cnn5", sizes=(16, 16)), rounds=1, lr=1e300)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_loss_that_is_no_number_names_the_client(executor: str) -> None:
    with pytest.raises(DivergedError, match=r"loss of client \d+ \(cnn[45], \d+ samples\) became (nan|inf).*round \d"):
        finished("standalone", TASK, lr=1e6, rounds=8, executor=executor)


def test_methods_that_share_an_extractor_get_one_model_and_say_so() -> None:
    specs, note = specs_for(method_class("fedavg")(), TASK)
    assert {spec.model for spec in specs} == {"cnn4"}
    assert "all run cnn4" in note
    specs, note = specs_for(FedMoE(), TASK)
    assert [spec.model for spec in specs] == ["cnn5", "cnn4"] * 3
    assert note == ""


def test_few_sampled_clients_need_room_for_few() -> None:
    simulation = make_simulation("fedmoe", make_task("cnn5", sizes=(16,) * 12), participation=0.25, executor="stacked")
    for _ in range(3):
        simulation.step()
    rooms = [len(next(iter(buffer.values()))) for buffer in simulation.fleet._buffers.values()]
    assert rooms == [3]


@pytest.mark.parametrize("executor", ["loop", "workers", "stacked"])
def test_bfloat16_stays_near_float32(executor: str) -> None:
    exact = finished("fedavg", TASK, precision="float32", executor=executor)
    rough = finished("fedavg", TASK, precision="bfloat16", executor=executor)
    assert {t.dtype for t in rough.server.values()} == {torch.float32}
    moved = torch.cat([(exact.server[n] - exact.start[n]).flatten() for n in exact.server])
    apart = torch.cat([(exact.server[n] - rough.server[n]).flatten() for n in exact.server])
    assert 0 < apart.norm() < 0.05 * moved.norm()


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_what_is_collected_with_bfloat16_has_the_precision_of_the_models(executor: str) -> None:
    exact = finished("fedproto", TASK, precision="float32", executor=executor).server["prototypes.means"]
    rough = finished("fedproto", TASK, precision="bfloat16", executor=executor).server["prototypes.means"]
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).norm() < 0.05 * exact.norm()


def test_evaluation_counts_what_each_client_gets_right() -> None:
    simulation = finished("standalone", TASK, rounds=6)
    for result in simulation.evaluate():
        client = TASK.clients[result.client]
        own = simulation.client_state(result.client)
        program = simulation.fleet.program(result.client)
        program.train_only(())
        for index, right, total in (
            (client.validation, result.validation_correct, result.validation_samples),
            (client.test, result.test_correct, result.test_samples),
        ):
            x = simulation.data.x(torch.from_numpy(index))
            predicted = program.bind(simulation.method.predict)(own, x, {}).argmax(1).numpy()
            assert (int((predicted == TASK.dataset.labels[index]).sum()), len(index)) == (right, total)


def test_training_learns() -> None:
    results = finished("standalone", TASK, rounds=10, epochs=5, lr=0.1, participation=1.0).evaluate()
    assert np.mean([r.test_correct / r.test_samples for r in results]) > 0.9


def test_clients_start_different_and_server_parts_alike() -> None:
    found = states(make_simulation("fedmoe", make_task("cnn5")))
    assert torch.equal(found["0/global_expert.fc1.weight"], found["1/global_expert.fc1.weight"])
    assert not torch.equal(found["0/local_expert.fc1.weight"], found["1/local_expert.fc1.weight"])
