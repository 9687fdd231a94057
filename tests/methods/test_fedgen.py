"""What makes FedGen itself."""

import pytest
import torch
from support import assert_close, assert_same_bits, finished, make_simulation, make_task
from torch.nn import functional as F

from fedexperts.engine import Observer
from fedexperts.methods import Batch, Channel, Message, Model, Reply, Round, State, part_of, select
from fedexperts.methods.fedgen import FedGen, sameness
from fedexperts.task import ClientSpec

TASK = make_task("cnn5")
NOW = Round(1, 10, seed=0)
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=20)
MANY = {"generator_steps": 150, "generator_lr": 0.003}


def server_and_replies(method: FedGen) -> tuple[State, list[Reply]]:
    """Two clients; nobody has a sample of class 3."""
    torch.manual_seed(0)
    model = Model(method.parts(SPEC))
    server = method.start(model)
    shared = select(server, {"extractor", "head"})

    def reply(client: int, counts: list[int]) -> Reply:
        own = {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in shared.items()}
        return Reply(client, Message({**own, "labels.counts": torch.tensor(counts)}, {"samples": sum(counts)}))

    return server, [reply(0, [30, 0, 10, 0]), reply(1, [0, 60, 20, 0])]


def after(options: dict[str, float], now: Round = NOW) -> tuple[State, list[Reply]]:
    method = FedGen(options=options)
    server, replies = server_and_replies(method)
    return method.combine(server, replies, now), replies


def test_without_its_weight_it_is_fedavg() -> None:
    found = finished("fedgen", TASK, epochs=2, options={"weight": 0.0}).server
    assert_same_bits(select(found, {"extractor", "head"}), finished("fedavg", TASK, epochs=2).server)


def test_clients_learn_from_generated_features_after_the_first_round() -> None:
    def shared(method: str, rounds: int) -> State:
        return select(finished(method, TASK, rounds=rounds).server, {"extractor", "head"})

    assert_close(shared("fedgen", 1), shared("fedavg", 1))
    assert (shared("fedgen", 2)["head.weight"] - shared("fedavg", 2)["head.weight"]).abs().max() > 1e-6


def test_the_loss_has_the_heads_error_on_what_was_generated() -> None:
    method = FedGen(options={"weight": 0.7})
    model, batch = Model(method.parts(SPEC)), Batch(torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1]))
    features, classes = torch.randn(9, 500), torch.randint(0, 4, (9,))
    received = {"generated.features": features, "generated.classes": classes, "generated.ready": torch.tensor(1.0)}
    real = F.cross_entropy(model.head(model.extractor(batch.x)), batch.y)
    made = F.cross_entropy(model.head(features), classes)
    torch.testing.assert_close(method.loss(model, batch, received), real + 0.7 * made)
    received["generated.ready"] = torch.tensor(0.0)
    torch.testing.assert_close(method.loss(model, batch, received), real)


def test_the_clients_heads_agree_on_what_the_generator_makes() -> None:
    untrained, _ = after({"generator_steps": 1, "generator_lr": 1e-9})
    server, replies = after(MANY)

    def agreement(state: State) -> float:
        logits = sum(
            F.linear(state["generated.features"], r.message.tensors["head.weight"], r.message.tensors["head.bias"])
            for r in replies
        )
        return float((torch.as_tensor(logits).argmax(1) == state["generated.classes"]).float().mean())

    assert agreement(untrained) < 0.6
    assert agreement(server) > 0.95


def test_classes_are_generated_as_often_as_clients_have_them() -> None:
    server, _ = after({"generated": 12_000})
    shares = torch.bincount(server["generated.classes"], minlength=4) / 12_000
    torch.testing.assert_close(shares, torch.tensor([0.25, 0.5, 0.25, 0.0]), rtol=0, atol=0.02)


def test_the_servers_steps_are_repeated_exactly_and_leave_what_was_there() -> None:
    method = FedGen()
    server, replies = server_and_replies(method)
    before = {name: tensor.clone() for name, tensor in server.items()}
    first, again = (method.combine(server, replies, NOW) for _ in range(2))
    assert_same_bits(first, again)
    assert_same_bits(server, before)
    assert first.keys() == server.keys()
    later = method.combine(server, replies, Round(2, 10, seed=0))
    assert not torch.equal(later["generated.features"], first["generated.features"])
    assert method.combine(server, [], NOW) is server


def test_the_term_for_diversity_spreads_the_features_of_a_class() -> None:
    def spread(diversity: float) -> float:
        server, _ = after(MANY | {"diversity": diversity})
        return float(server["generated.features"][server["generated.classes"] == 1].std(0).mean())

    assert spread(10.0) > 1.2 * spread(0.0)


def test_sameness_is_one_for_equal_features_and_falls_with_their_distance() -> None:
    noise = torch.tensor([[0.0], [2.0]])
    assert sameness(noise, torch.ones(2, 3)) == 1
    apart = sameness(noise, torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    torch.testing.assert_close(apart, torch.tensor(-4 * 1.5 / 2).exp())  # half of the pairs are of a row with itself


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_the_generator_stays_at_the_server_and_label_counts_go_up(executor: str) -> None:
    sent: dict[Channel, list[Message]] = {Channel.UP: [], Channel.DOWN: []}

    class Keep(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            sent[channel].append(message)

    simulation = make_simulation("fedgen", TASK, participation=1.0, observers=(Keep(),), executor=executor)
    simulation.step()
    down, up = ({part_of(n) for m in sent[channel] for n in m.tensors} for channel in (Channel.DOWN, Channel.UP))
    assert down == {"extractor", "head", "generated"}
    assert up == {"extractor", "head", "labels"}
    counts = sum(message.tensors["labels.counts"] for message in sent[Channel.UP])
    everyone = [label for client in TASK.clients for label in TASK.dataset.labels[client.train]]
    assert torch.as_tensor(counts).tolist() == [everyone.count(label) for label in range(4)]
