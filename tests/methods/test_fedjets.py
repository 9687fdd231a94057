"""What makes FedJETs itself."""

from pathlib import Path

import pytest
import torch
from support import finished, make_simulation, make_task
from torch.nn import functional as F

import fedexperts
from fedexperts.errors import MethodError, SettingsError
from fedexperts.measure import History
from fedexperts.methods import Batch, Model, Round, State, part_of, select
from fedexperts.methods.fedjets import FedJETs
from fedexperts.task import ClientSpec

TASK = make_task("cnn-da")
NOW = Round(2, 3, seed=0)
X, Y = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


def spec(client: int) -> ClientSpec:
    return ClientSpec(id=client, model="cnn-da", shape=(1, 8, 8), classes=4, samples=100)


def made(**options: object) -> tuple[FedJETs, Model, State]:
    """The method, a client's fresh model, the server's first state."""
    torch.manual_seed(0)
    method = FedJETs(options=options)
    model = Model(method.parts(spec(0)))
    return method, model, method.start(model)


def size(state: State, *parts: str) -> int:
    return sum(tensor.numel() for tensor in select(state, set(parts)).values())


def test_only_the_top_experts_and_the_gate_travel_and_the_common_expert_once() -> None:
    history = History()
    run = {"participation": 0.5, "rounds": 5, "executor": "stacked", "observers": (history,)}
    server = finished("fedjets", TASK, options={"top": 3}, **run).server
    gate, common, expert = size(server, "gate"), size(server, "common"), size(server, "experts") // 4
    taken_part: dict[int, int] = {}
    for row in [row for row in history.rows if row["train_loss"] is not None]:
        once = common if row["client"] not in taken_part else 0
        assert row["down_parameters"] == once + gate + 3 * expert + 3 + 1  # which experts, and whether an anchor's
        assert row["up_parameters"] == gate + 3 * expert + 4  # how much each expert is used
        taken_part.setdefault(row["client"], row["round"])
    assert len(set(taken_part.values())) > 1  # some come later than others


def test_the_server_sends_the_experts_that_the_gate_used_most() -> None:
    method, _, server = made(anchors=0.0)
    server["uses.5"] = torch.tensor([0.1, 0.4, 0.2, 0.3])
    message = method.send(server, spec(5), NOW)
    assert message.tensors["chosen.experts"].tolist() == [1, 3]
    for slot, expert in enumerate([1, 3]):
        name = "extractor.conv1.weight"
        assert torch.equal(message.tensors[f"experts.{slot}.{name}"], server[f"experts.{expert}.{name}"])
    assert {part_of(name) for name in message.tensors} == {"gate", "experts", "chosen"}


def test_before_that_they_are_random_and_differ_between_clients() -> None:
    method, _, server = made(anchors=0.0)
    first = [tuple(method.chosen(server, spec(client), NOW)) for client in range(20)]
    assert all(len(set(chosen)) == 2 for chosen in first)
    assert {expert for chosen in first for expert in chosen} == {0, 1, 2, 3}
    assert first == [tuple(method.chosen(server, spec(client), NOW)) for client in range(20)]


def test_an_anchor_always_has_its_expert_and_teaches_the_gate() -> None:
    method, model, server = made(anchors=0.5)
    for client in range(4):
        server[f"uses.{client}"] = torch.tensor([0.4, 0.3, 0.2, 0.1])
    assert [method.chosen(server, spec(client), NOW) for client in range(4)] == [[0, 1], [1, 0], [2, 0], [3, 0]]
    anchor, other = (dict(method.send(server, spec(client), NOW).tensors) for client in (3, 4))
    assert anchor["chosen.anchored"] == 1
    assert other["chosen.anchored"] == 0
    alone = anchor | {"chosen.anchored": torch.tensor(0.0)}
    taught = -model.gate(model.common(X)).log_softmax(1)[:, 3].mean()
    difference = method.loss(model, Batch(X, Y), anchor) - method.loss(model, Batch(X, Y), alone)
    torch.testing.assert_close(difference, 0.5 * taught)


def test_training_mixes_the_clients_experts_and_a_sample_is_answered_by_the_best() -> None:
    method, model, _ = made()
    received = {"chosen.experts": torch.tensor([3, 1]), "chosen.anchored": torch.tensor(0.0)}
    scores = model.gate(model.common(X))
    weights = scores[:, [3, 1]].softmax(1)
    answers = torch.stack([expert(X).softmax(1) for expert in model.experts], dim=1)
    mixed = (weights[:, :, None] * answers).sum(1)
    torch.testing.assert_close(method.loss(model, Batch(X, Y), received), F.nll_loss(mixed.log(), Y))
    best = answers[torch.arange(8), weights.argmax(1)]
    torch.testing.assert_close(method.predict(model, X, received).softmax(1), best)
    torch.testing.assert_close(method.weigh(model, X, received), scores.softmax(1))


def test_an_expert_that_no_client_had_stays_as_it_is() -> None:
    simulation = make_simulation("fedjets", TASK, participation=0.34, options={"anchors": 0.0, "top": 1})
    before = {name: tensor.clone() for name, tensor in simulation.server.items()}
    had = {simulation.message_for(client).tensors["chosen.experts"].item() for client in simulation.sample(1)}
    simulation.step()
    assert 0 < len(had) < 4
    for expert in range(4):
        name = f"experts.{expert}.head.weight"
        assert torch.equal(simulation.server[name], before[name]) == (expert not in had)


def test_a_clients_use_of_the_experts_decides_what_it_gets_next() -> None:
    simulation = make_simulation("fedjets", TASK, participation=1.0, options={"anchors": 0.0})
    simulation.step()
    for client in range(6):
        use = simulation.server[f"uses.{client}"]
        torch.testing.assert_close(use.sum(), torch.ones_like(use.sum()))
        assert simulation.message_for(client).tensors["chosen.experts"].tolist() == use.topk(2).indices.tolist()


def test_experts_start_apart() -> None:
    server = made()[2]
    firsts = [server[f"experts.{expert}.extractor.conv1.weight"] for expert in range(4)]
    assert not any(torch.equal(a, b) for i, a in enumerate(firsts) for b in firsts[:i])


def test_the_common_expert_is_a_fedavg_runs_and_stays(tmp_path: Path) -> None:
    settings = {"rounds": 2, "batch_size": 16, "device": "cpu"}
    averaged = fedexperts.run("fedavg", TASK, out=tmp_path / "fedavg", **settings)
    result = fedexperts.run("fedjets", TASK, common=tmp_path / "fedavg", participation=0.34, **settings)
    for client in result.clients:
        for name, tensor in select(averaged.simulation.server, {"extractor"}).items():
            assert torch.equal(client[name.replace("extractor.", "common.", 1)], tensor)
    assert not any("pre-trained" in note for note in result.record.notes)
    fresh = fedexperts.run("fedjets", TASK, rounds=1)
    assert any("the common expert is not pre-trained" in note for note in fresh.record.notes)


def test_what_cannot_be_the_common_expert_says_why(tmp_path: Path) -> None:
    with pytest.raises(MethodError, match="is not the folder of a finished run"):
        make_simulation("fedjets", TASK, options={"common": tmp_path})
    fedexperts.run("standalone", TASK, out=tmp_path / "alone", rounds=1)
    with pytest.raises(MethodError, match="shares no extractor; give --common a FedAvg run"):
        make_simulation("fedjets", TASK, options={"common": tmp_path / "alone"})
    fedexperts.run("fedavg", make_task("cnn-pm"), out=tmp_path / "other", rounds=1)
    with pytest.raises(MethodError, match="like the clients' model; give --common a FedAvg run"):
        make_simulation("fedjets", TASK, options={"common": tmp_path / "other"})


def test_a_client_cannot_have_more_experts_than_there_are() -> None:
    with pytest.raises(SettingsError, match="top 3 of 2 experts"):
        FedJETs(options={"experts": 2, "top": 3})
