"""What makes FedPAC itself."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support import assert_close, finished, make_simulation, make_task

from fedexperts.config import TrainSettings
from fedexperts.engine import Observer
from fedexperts.methods import Batch, Channel, Message, Method, Model, Reply, Round, Stage, State
from fedexperts.methods.fedpac import Array, FedPAC, combination_weights
from fedexperts.task import ClientSpec

TASK = make_task("cnn5")
NOW = Round(2, 10, seed=0)
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)


class Uploads(Observer):
    """What the clients sent in the last round."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        if channel is Channel.UP:
            self.replies.append(Reply(client, message))


# --- the mixture of heads


@pytest.mark.parametrize("clients", [1, 2, 5, 40])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_weights_are_on_the_simplex_and_none_is_better(clients: int, scale: float) -> None:
    rng = np.random.default_rng(clients)
    means, variances = scale * rng.normal(size=(clients, 12)), scale**2 * rng.uniform(0.01, 3, clients)
    weights = combination_weights(means, variances)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(1), 1)
    for own, alpha in zip(means, weights, strict=True):
        # Of a convex function on the simplex: its slope is least, and equal, wherever there is weight.
        slope = (own - means) @ (alpha @ (own - means)) + variances * alpha
        np.testing.assert_array_less(slope[alpha > 0].max(), slope + 1e-9 * slope.max() + 1e-300)


def test_the_weights_of_two_clients_are_known() -> None:
    distance, variances = 5.0, np.array([2.0, 3.0])
    weights = combination_weights(np.array([[1.0, 0.0], [4.0, 4.0]]), variances)
    other = variances / (distance**2 + variances.sum())
    np.testing.assert_allclose(weights, [[1 - other[0], other[0]], [other[1], 1 - other[1]]])


def test_clients_of_one_distribution_share_their_heads_and_others_do_not() -> None:
    means = np.repeat([[8.0, 0, 0], [0, 8.0, 0]], 3, axis=0)
    weights = combination_weights(means, np.array([0.01, 0.02, 0.04, 0.03, 0.03, 0.03]))
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-6)
    np.testing.assert_allclose(weights[:3, :3], [[4 / 7, 2 / 7, 1 / 7]] * 3, atol=1e-3)  # as 1/V
    np.testing.assert_allclose(weights[3:, 3:], 1 / 3, atol=1e-3)
    assert weights[:3, 3:].max() < 1e-4


def test_features_without_any_spread_still_give_weights() -> None:
    weights = combination_weights(np.zeros((3, 4)), np.array([0.0, -1e-18, 0.0]))
    np.testing.assert_allclose(weights.sum(1), 1)


def test_each_client_gets_its_mixture_of_the_heads_that_were_sent() -> None:
    uploads = Uploads()
    simulation = make_simulation("fedpac", TASK, participation=0.5, observers=(uploads,))
    method, start = simulation.method, simulation.server
    assert isinstance(method, FedPAC)
    simulation.step()
    weights = method.weights(start, uploads.replies)
    assert (weights > 0.01).sum() > 3  # not each its own alone
    heads = torch.stack([reply.message.tensors["head.weight"] for reply in uploads.replies])
    for reply, alpha in zip(uploads.replies, torch.from_numpy(weights), strict=True):
        expected = (alpha[:, None, None] * heads).sum(0)
        torch.testing.assert_close(simulation.client_state(reply.client)["head.weight"], expected)
    [absent, *_] = set(range(6)) - {reply.client for reply in uploads.replies}
    assert torch.equal(simulation.client_state(absent)["head.weight"], start["head.weight"])


def test_without_alignment_and_with_weights_by_samples_it_is_fedavg_in_two_stages() -> None:
    class BySamples(FedPAC):
        def weights(self, server: State, replies: Sequence[Reply]) -> Array:
            samples = np.array([reply.message.numbers["samples"] for reply in replies])
            return np.tile(samples / samples.sum(), (len(replies), 1))

    class InTwoStages(Method):
        name = "in-two-stages"

        def stages(self, now: Round) -> Sequence[Stage]:
            return [Stage((part,), self.loss, self.train.epochs) for part in ("head", "extractor")]

    found = finished(BySamples, TASK, participation=1.0, options={"alignment": 0.0})
    expected = finished(InTwoStages, TASK, participation=1.0)
    for client in range(6):
        assert_close(found.client_state(client), expected.client_state(client))


# --- the alignment of features


def test_the_head_is_trained_first_then_the_extractor() -> None:
    method = FedPAC(TrainSettings.check({"epochs": 5}), {"head_lr": 0.3})
    head, extractor = method.stages(NOW)
    assert (head.parts, head.epochs, head.rates) == (("head",), 1, {"head": 0.3})
    assert (extractor.parts, extractor.epochs, extractor.rates) == (("extractor",), 5, {})
    model, batch = Model(method.parts(SPEC)), Batch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
    received = {"prototypes.means": torch.ones(4, 500), "prototypes.known": torch.tensor([1.0, 0.0, 1.0, 1.0])}
    distances = (model.extractor(batch.x) - 1).square().mean(1)
    pulled = extractor.loss(model, batch, received) - head.loss(model, batch, received)
    torch.testing.assert_close(pulled, distances[[0, 2, 3]].sum() / 4)


def test_a_client_sends_the_means_of_the_trained_extractor_and_the_statistics_of_the_one_that_all_got() -> None:
    uploads = Uploads()
    simulation = make_simulation("fedpac", TASK, participation=1.0, observers=(uploads,))
    start = simulation.server
    simulation.step()
    total, counts = torch.zeros(4, 500, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for client, message in ((reply.client, reply.message.tensors) for reply in uploads.replies):
        index = torch.from_numpy(TASK.clients[client].train)
        labels = torch.nn.functional.one_hot(simulation.data.y(index), 4).double()

        def features(of: dict[str, torch.Tensor], index: torch.Tensor = index) -> torch.Tensor:
            model = Model(simulation.method.parts(SPEC)).double()
            model.load_state_dict({n: of[n] for n in model.state_dict()})
            return model.extractor(simulation.data.x(index)).detach()

        here = labels.sum(0)
        torch.testing.assert_close(message["prototypes.means"], (labels.T @ features(message)) / here[:, None])
        by_class = labels[:, :, None] * features(start)[:, None, :]  # samples × classes × width
        torch.testing.assert_close(message["statistics.means"], by_class.mean(0))
        spread = by_class.flatten(1).var(0, correction=0).sum()
        torch.testing.assert_close(message["statistics.variance"], spread / len(index))
        total += labels.T @ features(message)
        counts += here
    torch.testing.assert_close(simulation.server["prototypes.means"], total / counts[:, None])
    assert simulation.server["prototypes.known"].tolist() == [1, 1, 1, 1]
