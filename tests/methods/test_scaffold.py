"""What makes SCAFFOLD itself."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import assert_close, finished, make_simulation, make_task
from torch import nn
from torch.nn import functional as F

from fedexperts.config import TrainSettings
from fedexperts.data import ClientData
from fedexperts.errors import SettingsError
from fedexperts.methods import Batch, Message, Method, Model, Reply, Round, State, Trained, part_of
from fedexperts.methods.base import weighted_mean
from fedexperts.methods.scaffold import Scaffold, Variate
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

TASK = make_task("cnn5/8")
NOW = Round(1, 3, seed=0, clients=6)
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)


class PlainMean(Method):
    """FedAvg whose clients all count the same."""

    name = "plain-mean"

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        return weighted_mean(replies, equal=True)


def of_the_model(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if part_of(name) != "variate"}


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_servers_variate_is_the_mean_of_all_clients_own(participation: float) -> None:
    simulation = make_simulation("scaffold", TASK, participation=participation)
    for _ in range(3):
        simulation.step()
        own = [simulation.fleet.kept(client) for client in range(6)]
        for name in own[0]:
            assert name.startswith("variate.")
            mean = torch.stack([tensors[name] for tensors in own]).mean(0)
            torch.testing.assert_close(simulation.server[name], mean, rtol=1e-9, atol=1e-12)
            assert mean.abs().max() > 0


def test_the_first_round_is_fedavgs_with_a_plain_mean_and_the_second_is_not() -> None:
    for rounds, same in ((1, True), (2, False)):
        found = of_the_model(finished("scaffold", TASK, rounds=rounds).server)
        expected = finished(PlainMean, TASK, rounds=rounds).server
        assert found.keys() == expected.keys()
        close = [torch.allclose(found[n], t, rtol=1e-9, atol=1e-12) for n, t in expected.items()]
        assert all(close) if same else not any(close)


def test_the_gradient_is_corrected_by_the_difference_of_the_variates() -> None:
    method = Scaffold()
    model = Model(method.parts(SPEC)).double()
    received = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    for parameter in model.variate.parameters():
        parameter.data.normal_()
    batch = Batch(torch.randn(8, 1, 8, 8).double(), torch.randint(0, 4, (8,)))
    own = {name: tensor for name, tensor in model.named_parameters() if part_of(name) != "variate"}
    plain = F.cross_entropy(model.head(model.extractor(batch.x)), batch.y)
    losses = (method.loss(model, batch, received), plain)
    gradients = (torch.autograd.grad(loss, list(own.values())) for loss in losses)
    for name, corrected, free in zip(own, *gradients, strict=True):
        variate = f"variate.{name}"
        torch.testing.assert_close(corrected, free - model.state_dict()[variate] + received[variate])


def test_the_steps_are_those_that_the_engine_makes() -> None:
    simulation = make_simulation("scaffold", TASK, participation=1.0, epochs=2)
    method = simulation.method
    assert isinstance(method, Scaffold)
    for cohort in next(simulation.fleet.waves(range(6))):
        [lesson] = simulation._job(cohort, NOW).lessons
        assert lesson.steps == tuple(method.steps(client) for client in cohort.clients)


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_after_one_step_the_own_variate_is_the_gradient(weight_decay: float) -> None:
    """All of a client's data are one batch; weight decay is a part of the gradient."""
    simulation = make_simulation("scaffold", TASK, participation=1.0, batch_size=64, weight_decay=weight_decay)
    start = simulation.server
    simulation.step()
    for client, data in enumerate(TASK.clients):
        model = Model(simulation.method.parts(simulation.specs[client])).double()
        model.load_state_dict(start)
        index = torch.from_numpy(data.train)
        logits = model.head(model.extractor(simulation.data.x(index)))
        F.cross_entropy(logits, simulation.data.y(index)).backward()
        kept = simulation.fleet.kept(client)
        for name, parameter in model.named_parameters():
            if part_of(name) != "variate":
                expected = parameter.grad + weight_decay * parameter.detach()
                torch.testing.assert_close(kept[f"variate.{name}"], expected, rtol=1e-9, atol=1e-12)


def test_the_own_variate_becomes_the_mean_of_the_uncorrected_gradients() -> None:
    method = Scaffold(TrainSettings.check({"lr": 0.5, "batch_size": 40, "epochs": 2}))
    x, c, own = (torch.randn(3, dtype=torch.float64) for _ in range(3))
    gradients = torch.randn(method.steps(SPEC), 3, dtype=torch.float64)
    assert len(gradients) == 6  # two epochs of three batches, the last one filled up
    y = x - 0.5 * (gradients - own + c).sum(0)
    after = Trained(SPEC, {"head.bias": y, "variate.head.bias": own}, {"head.bias": x, "variate.head.bias": c})
    new = method.finish(after, NOW)["variate.head.bias"]
    torch.testing.assert_close(new, gradients.mean(0))
    sent = method.reply(after, NOW).tensors
    assert torch.equal(sent["head.bias"], y)
    torch.testing.assert_close(sent["variate.head.bias"], new - own)


def test_the_server_takes_plain_means_and_weighs_variates_by_turnout() -> None:
    def state(x: float, c: float) -> State:
        return {"head.bias": torch.tensor([x]).double(), "variate.head.bias": torch.tensor([c]).double()}

    replies = [Reply(0, Message(state(3.0, 4.0))), Reply(5, Message(state(5.0, 8.0)))]
    after = Scaffold(options={"global_rate": 0.5}).combine(state(2.0, 1.0), replies, NOW)
    assert_close(after, state(3.0, 1.0 + 2 / 6 * 6.0))


class Linear(Scaffold):
    """A convex problem."""

    name = "linear"

    def parts(self, client: ClientSpec) -> Parts:
        model: Parts = {"extractor": nn.Flatten(), "head": nn.Linear(64, 4)}
        return {**model, "variate": Variate(model)}


class Uncorrected(Linear):
    name = "uncorrected"

    def finish(self, after: Trained, now: Round) -> State:
        return {}

    def reply(self, after: Trained, now: Round) -> Message:
        sent = super().reply(after, now).tensors
        return Message({n: torch.zeros_like(t) if part_of(n) == "variate" else t for n, t in sent.items()})


@pytest.mark.parametrize(("kind", "arrives"), [(Linear, True), (Uncorrected, False)])
def test_clients_with_different_classes_end_where_the_mean_of_their_losses_is_least(
    kind: type[Linear], arrives: bool
) -> None:
    task = make_task(sizes=(48, 48, 48))
    by_label = np.array_split(np.argsort(task.dataset.labels, kind="stable"), 3)
    task = replace(task, clients=tuple(ClientData(own[:48], own[48:56], own[56:]) for own in by_label))
    values = {"rounds": 15, "epochs": 10, "batch_size": 48, "weight_decay": 1.0, "evaluate_every": 15}
    found = finished(kind, task, participation=1.0, **values)
    weight, bias = found.server["head.weight"].requires_grad_(), found.server["head.bias"]
    for client in task.clients:
        index = torch.from_numpy(client.train)
        F.cross_entropy(F.linear(found.data.x(index).flatten(1), weight, bias), found.data.y(index)).backward()
    slope = (weight.grad / 3 + weight.detach()).norm()
    assert slope < 1e-3 if arrives else slope > 0.1


def test_only_plain_sgd_is_taken() -> None:
    def made(**train: Any) -> Scaffold:
        return Scaffold(TrainSettings.check(train))

    made(weight_decay=0.1)
    with pytest.raises(SettingsError, match=r"which momentum 0.9 does not show; use --optimizer sgd --momentum 0"):
        made(momentum=0.9)
    with pytest.raises(SettingsError, match="which Adam does not show"):
        made(optimizer="adam", lr=0.001)
