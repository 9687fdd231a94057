"""What makes FedCP itself."""

from typing import cast

import pytest
import torch
from support import assert_close, finished, make_simulation, make_task, states
from torch import nn
from torch.nn import functional as F

from fedexperts.engine import Observer
from fedexperts.methods import Batch, Channel, Message, Model, Reply, Round, State
from fedexperts.methods.fedcp import BANDWIDTHS, FedCP, discrepancy
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

TASK = make_task("cnn5")
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)
METHOD = FedCP(options={"alignment": 3.0})


def made() -> tuple[Model, Batch, State]:
    """A client in the middle of a round: its extractor is no more the one that it got."""
    torch.manual_seed(0)
    model, received = (Model(METHOD.parts(SPEC)).double() for _ in range(2))
    model.condition.vector.copy_(F.normalize(torch.randn(500).double(), dim=0))
    batch = Batch(torch.randn(8, 1, 8, 8).double(), torch.tensor([0, 0, 1, 1, 1, 2, 2, 3]))
    return model, batch, dict(received.state_dict())


def test_the_policy_splits_every_feature_of_every_sample_between_the_heads() -> None:
    model, batch, received = made()
    for parameter in model.policy.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    features = model.extractor(batch.x)
    scores = model.policy.scores(features * model.condition.vector)
    shares = torch.sigmoid(scores[:, :500] - scores[:, 500:])
    personal, generic = METHOD.separate(model, features)
    torch.testing.assert_close(personal, shares * features)
    torch.testing.assert_close(generic, (1 - shares) * features)
    assert shares.std(0).max() > 0  # each sample has its own
    assert shares.std(1).min() > 0  # and each feature
    answer = model.personal_head(personal) + model.head(generic)
    torch.testing.assert_close(METHOD.predict(model, batch.x, received), answer)


def test_the_discrepancy_is_that_of_the_kernels_means() -> None:
    x, y = torch.randn(5, 7).double(), 1 + torch.randn(5, 7).double()

    def kernel(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sum(torch.exp(-(u - v).square().sum() / (2 * width)) for width in BANDWIDTHS)  # type: ignore[return-value]

    def mean(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.stack([kernel(u, v) for u in left for v in right]).mean()

    torch.testing.assert_close(discrepancy(x, y), mean(x, x) + mean(y, y) - 2 * mean(x, y))
    assert discrepancy(x, y) > 0.1
    assert discrepancy(x, x.flip(0)).abs() < 1e-12


def test_the_features_are_held_near_those_of_the_extractor_that_came() -> None:
    model, batch, received = made()
    frozen = Model(METHOD.parts(SPEC)).double()
    frozen.load_state_dict(received)
    distance = discrepancy(model.extractor(batch.x), frozen.extractor(batch.x))
    task = F.cross_entropy(METHOD.predict(model, batch.x, received), batch.y)
    assert distance > 1e-3
    torch.testing.assert_close(METHOD.loss(model, batch, received), task + 3 * distance)


def test_the_condition_is_the_personal_heads_direction_at_the_rounds_start() -> None:
    simulation = make_simulation("fedcp", TASK, participation=1.0)
    simulation.step()
    [cohorts] = list(simulation.fleet.waves(range(6)))
    for cohort in cohorts:
        before = cohort.tensors["personal_head.weight"].clone()
        simulation.executor.train([simulation._job(cohort, Round(2, 3, seed=0))])
        simulation.fleet.changed(cohort)
        after = cohort.tensors["personal_head.weight"]
        assert not torch.equal(before, after)
        for old, new, client in zip(before.sum(1), after.sum(1), cohort.clients, strict=True):
            own = cohort.of(cohort.clients.index(client))["condition.vector"]
            torch.testing.assert_close(own, old / old.norm())
            in_use = simulation.client_state(client.id)["condition.vector"]
            torch.testing.assert_close(in_use, new / new.norm())


def test_a_client_sends_the_mean_of_both_heads_and_trains_one() -> None:
    sent: list[Reply] = []

    class Uploads(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            if channel is Channel.UP:
                sent.append(Reply(client, message))

    simulation = make_simulation("fedcp", TASK, participation=1.0, observers=(Uploads(),))
    generic = simulation.server["head.weight"]
    simulation.step()
    assert len(sent) == 6
    for reply in sent:
        kept = simulation.fleet.kept(reply.client)
        assert kept.keys() == {"personal_head.weight", "personal_head.bias"}
        torch.testing.assert_close(reply.message.tensors["head.weight"], (generic + kept["personal_head.weight"]) / 2)
        assert {name.partition(".")[0] for name in reply.message.tensors} == {"extractor", "head", "policy"}


class WithNorm(FedCP):
    """An extractor that has something to remember."""

    name = "with-norm"

    def parts(self, client: ClientSpec) -> Parts:
        parts = super().parts(client)
        width = cast(int, parts["extractor"].features)
        return parts | {"extractor": nn.Sequential(parts["extractor"], nn.BatchNorm1d(width))}


@pytest.mark.parametrize("executor", ["stacked", "workers"])
def test_the_extractor_that_came_stays_as_it_came_batchnorm_and_all(executor: str) -> None:
    assert_close(states(finished(WithNorm, TASK, executor=executor)), states(finished(WithNorm, TASK)))
    simulation = make_simulation(WithNorm, TASK, participation=1.0, executor=executor)
    [cohorts] = list(simulation.fleet.waves(range(6)))
    jobs = [simulation._job(cohort, Round(1, 3, seed=0)) for cohort in cohorts]
    before = {name: tensor.clone() for name, tensor in simulation.server.items()}
    simulation.executor.train(jobs)
    for job in jobs:
        for name, tensor in before.items():
            assert torch.equal(job.received.tensors[name], tensor)
        assert job.cohort.tensors["extractor.1.running_mean"].abs().max() > 0
