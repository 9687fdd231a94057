"""What makes DBE itself."""

from dataclasses import replace

import pytest
import torch
from support import assert_same_bits, finished, make_simulation, make_task
from torch.nn import functional as F

from fedexperts.engine import Observer
from fedexperts.methods import Batch, Channel, Message, Model, Round, Stage, State, part_of, select
from fedexperts.methods.dbe import DBE, RunningMean
from fedexperts.task import ClientSpec

TASK = make_task("cnn5")
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)


class Uploads(Observer):
    """What the clients sent, by round."""

    def __init__(self) -> None:
        self.sent: dict[int, dict[int, Message]] = {}

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        if channel is Channel.UP:
            self.sent.setdefault(round_number, {})[client] = message


def of_the_model(server: State) -> State:
    return select(server, {"extractor", "head"})


def test_the_first_round_is_fedavgs_bit_for_bit_and_the_second_is_not() -> None:
    for rounds, same in ((1, True), (2, False)):
        found, expected = (finished(name, TASK, rounds=rounds) for name in ("dbe", "fedavg"))
        if same:
            assert_same_bits(of_the_model(found.server), dict(expected.server))
            assert all(found.fleet.kept(client)["bias.vector"].abs().max() == 0 for client in range(6))
        else:
            assert not torch.equal(found.server["head.weight"], expected.server["head.weight"])


def test_without_regularisation_and_bias_it_is_fedavg() -> None:
    class Unbiased(DBE):
        def stages(self, now: Round) -> list[Stage]:
            return [replace(stage, parts=("extractor", "head", "mean")) for stage in super().stages(now)]

    found = finished(Unbiased, TASK, options={"regularisation": 0.0})
    assert_same_bits(of_the_model(found.server), dict(finished("fedavg", TASK).server))


def test_the_common_mean_is_that_of_the_first_rounds_features_and_stays() -> None:
    uploads = Uploads()
    simulation = make_simulation("dbe", TASK, participation=0.7, batch_size=64, observers=(uploads,))
    start = simulation.server
    simulation.step()
    total, samples = torch.zeros(500).double(), 0
    for client in uploads.sent[1]:  # all of a client's data are its only batch
        model = Model(simulation.method.parts(simulation.specs[client])).double()
        model.load_state_dict(start | simulation.fleet.kept(client))
        index = torch.from_numpy(TASK.clients[client].train)
        total += model.extractor(simulation.data.x(index)).detach().sum(0)
        samples += len(index)
    assert len(uploads.sent[1]) == 4
    common = simulation.server["mean.running"]
    torch.testing.assert_close(common, total / samples)
    simulation.run()
    assert torch.equal(simulation.server["mean.running"], common)
    parts = {now: {part_of(n) for m in sent.values() for n in m.tensors} for now, sent in uploads.sent.items()}
    assert parts == {1: {"extractor", "head", "mean"}, 2: {"extractor", "head"}, 3: {"extractor", "head"}}


@pytest.mark.parametrize("momentum", [1.0, 0.25])
def test_the_mean_runs_with_the_batches_and_only_the_last_one_has_a_gradient(momentum: float) -> None:
    mean, expected = RunningMean(5, momentum), torch.zeros(5)
    for _ in range(3):
        features = torch.randn(8, 5, requires_grad=True)
        expected = (1 - momentum) * expected + momentum * features.detach().mean(0)
        found = mean(features)
        found.sum().backward()
        torch.testing.assert_close(found.detach(), expected)
        torch.testing.assert_close(features.grad, torch.full((8, 5), momentum / 8))
    before = mean.running.clone()
    assert not torch.equal(mean.eval()(torch.randn(8, 5)), before)
    assert torch.equal(mean.running, before)


def test_the_loss_pulls_the_features_mean_and_not_their_bias() -> None:
    torch.manual_seed(0)
    method = DBE(options={"regularisation": 7.0, "mean_momentum": 0.5})
    model, common = Model(method.parts(SPEC)), torch.randn(500)
    model.bias.vector.data.normal_()
    batch = Batch(torch.randn(8, 1, 8, 8), torch.tensor([0, 0, 1, 1, 1, 2, 2, 3]))
    features = model.extractor(batch.x)
    answer = model.head(features + model.bias.vector)
    pull = 7 * 0.5 * (0.5 * features.mean(0) - common).square().mean()
    torch.testing.assert_close(method.predict(model, batch.x, {}), answer)
    loss = method.loss(model, batch, {"mean.running": common})
    torch.testing.assert_close(loss, F.cross_entropy(answer, batch.y) + pull)
    [found] = torch.autograd.grad(loss, [model.bias.vector])
    [expected] = torch.autograd.grad(F.cross_entropy(answer, batch.y), [model.bias.vector])
    torch.testing.assert_close(found, expected)


def test_the_mean_begins_anew_in_every_round_and_the_bias_stays_with_its_client() -> None:
    simulation = make_simulation("dbe", TASK, participation=1.0)
    simulation.run()
    biases = [simulation.fleet.kept(client) for client in range(6)]
    assert all(kept.keys() == {"bias.vector"} for kept in biases)
    assert len({kept["bias.vector"][0].item() for kept in biases}) == 6
    for client, kept in enumerate(biases):
        state = simulation.client_state(client)
        assert torch.equal(state["bias.vector"], kept["bias.vector"])
        assert state["mean.running"].abs().max() == 0 < simulation.server["mean.running"].max()
