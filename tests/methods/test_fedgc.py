"""What makes FedGC itself."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from support import assert_same_bits, finished, make_simulation, make_task
from torch import Tensor

from fedexperts.config import TrainSettings
from fedexperts.data import ClientData
from fedexperts.engine import Observer
from fedexperts.methods import Channel, Message, Model, Reply, Round
from fedexperts.methods.fedgc import FedGC, crowding
from fedexperts.task import ClientSpec, Task

NOW = Round(2, 10, seed=0)
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=9, label_counts=(5, 0, 4, 0))


def two_classes_each() -> Task:
    """Four clients: two have the classes 0 and 1, two have 2 and 3."""
    task = make_task("cnn5/8", sizes=(24, 24, 24, 24))
    halves = [np.flatnonzero(task.dataset.labels // 2 == half) for half in (0, 1)]
    owned = [part[:32] for half in halves for part in np.array_split(half, 2)]
    return replace(task, clients=tuple(ClientData(own[:24], own[24:28], own[28:]) for own in owned))


def reply(client: int, classes: list[int], rows: Tensor) -> Reply:
    tensors = {"extractor.x": torch.zeros(1), "embeddings.classes": torch.tensor(classes), "embeddings.rows": rows}
    return Reply(client, Message(tensors, {"samples": 5}))


def test_the_correction_is_the_cross_client_gradient_with_embeddings_for_samples() -> None:
    """As in the paper, where every class belongs to one client: −λη·Σ_c p_c(w)·ẇ_c over other clients' classes c."""
    torch.manual_seed(0)
    rows = {0: torch.randn(2, 5).double(), 1: torch.randn(1, 5).double(), 2: torch.randn(2, 5).double()}
    classes = {0: [0, 3], 1: [5], 2: [2, 4]}
    replies = [reply(client, classes[client], rows[client]) for client in rows]
    method = FedGC(TrainSettings.check({"lr": 0.1}), {"correction": 3.0})
    after = method.combine({"extractor.x": torch.ones(1)}, replies, NOW)
    for client, own in rows.items():
        others = {k: other for k, other in rows.items() if k != client}
        for w, found in zip(own, after[f"rows.{client}"], strict=True):
            slope = torch.zeros(5).double()
            for k, theirs in others.items():
                for sample in theirs:  # stands for the samples of its class
                    rivals = torch.cat([tensor for z, tensor in rows.items() if z != k])
                    slope += (w @ sample).exp() / ((sample @ sample).exp() + (rivals @ sample).exp().sum()) * sample
            torch.testing.assert_close(found, w - 0.3 * slope)


def test_a_class_that_several_have_is_their_mean_and_none_of_them_is_corrected_for_it() -> None:
    rows = torch.tensor([[2.0, 0.0], [4.0, 0.0], [3.0, 1.0]], requires_grad=True)
    reg = crowding(rows, torch.tensor([0, 0, 1]), torch.tensor([7, 8, 8]))
    # Class 0 is [3, 0]; client 8 has it. Class 1 is [3, 1]; client 7 has it not.
    expected = torch.log1p(torch.tensor(6.0 - 10.0).exp())
    torch.testing.assert_close(reg, expected)
    reg.backward()
    assert rows.grad is not None
    assert rows.grad[1:].abs().max() == 0
    assert rows.grad[0].abs().min() > 0


def test_corrected_embeddings_are_further_from_those_of_other_clients() -> None:
    def alike(correction: float) -> float:
        found = finished("fedgc", two_classes_each(), rounds=4, participation=1.0, options={"correction": correction})
        rows = [torch.nn.functional.normalize(found.server[f"rows.{client}"], dim=1) for client in range(4)]
        return float((torch.cat(rows[:2]) @ torch.cat(rows[2:]).T).mean())

    assert alike(20.0) < alike(0.0) - 0.02


def test_a_client_gets_its_own_embeddings_corrected_and_nobody_elses() -> None:
    seen: list[tuple[Channel, int, Message]] = []

    class Messages(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            seen.append((channel, client, message))

    task = two_classes_each()
    simulation = make_simulation("fedgc", task, participation=1.0, observers=(Messages(),), options={"correction": 5.0})
    simulation.step()
    assert all("embeddings.rows" not in message.tensors for way, _, message in seen if way is Channel.DOWN)
    sent = {client: message.tensors for way, client, message in seen if way is Channel.UP}
    assert [sent[client]["embeddings.classes"].tolist() for client in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    own = {client: simulation.fleet.kept(client)["head.weight"].clone() for client in range(4)}
    seen.clear()
    corrected = dict(simulation.server)
    simulation.step()
    for way, client, message in seen:
        classes = sent[client]["embeddings.classes"]
        if way is Channel.DOWN:
            assert torch.equal(message.tensors["embeddings.rows"], corrected[f"rows.{client}"])
            assert not torch.equal(message.tensors["embeddings.rows"], own[client][classes])
            head = simulation.method.receive(
                {"head.weight": own[client], "classes.own": simulation.fleet.kept(client)["classes.own"]}, message
            )["head.weight"]
            assert torch.equal(head[classes], corrected[f"rows.{client}"])
            others = [label for label in range(4) if label not in classes]
            assert torch.equal(head[others], own[client][others])


def test_those_who_are_away_are_corrected_too_and_have_it_when_they_come_back() -> None:
    method = FedGC(options={"correction": 2.0})
    torch.manual_seed(1)
    first, second = torch.randn(1, 3), torch.randn(1, 3)
    server = {"extractor.x": torch.zeros(1), "rows.0": first, "classes.0": torch.tensor([0])}
    after = method.combine(server, [reply(1, [1], second)], NOW)
    assert not torch.equal(after["rows.0"], first)
    assert torch.equal(method.send(after, SPEC, NOW).tensors["embeddings.rows"], after["rows.0"])
    assert method.combine(server, [], NOW) is server


def test_the_softmax_is_over_the_clients_own_classes() -> None:
    method = FedGC()
    model = Model(method.parts(SPEC))
    logits = method.predict(model, torch.randn(6, 1, 8, 8), {})
    assert set(logits.argmax(1).tolist()) <= {0, 2}
    assert logits.softmax(1)[:, [1, 3]].abs().max() == 0
    assert torch.isfinite(logits).all()


def test_resumed_equals_uninterrupted_when_clients_come_one_after_another(tmp_path: Path) -> None:
    """What is summed over clients has their order, not that in which they first came."""
    values = {"participation": 0.5, "rounds": 4, "options": {"correction": 5.0}}
    whole = finished("fedgc", two_classes_each(), **values)
    broken = make_simulation("fedgc", two_classes_each(), folder=tmp_path / "state", **values)
    for _ in range(2):
        broken.step()
    broken.checkpoint()
    resumed = make_simulation("fedgc", two_classes_each(), folder=tmp_path / "state", **values)
    resumed.restore()
    resumed.run()
    assert_same_bits(resumed.server, whole.server)
