"""What makes FedMix itself."""

import torch
from support import by_class, finished, make_simulation, make_task
from torch.nn import functional as F

from fedexperts.measure import History
from fedexperts.methods import Batch, ByClass, Message, Model, Reply, Round, Trained
from fedexperts.methods.fedmix import FedMix
from fedexperts.task import ClientSpec

TASK = make_task("cnn-da")
SPEC = ClientSpec(id=0, model="cnn-da", shape=(1, 8, 8), classes=4, samples=100)
NOW = Round(1, 3, seed=0)
X, Y = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


def made(**options: object) -> tuple[FedMix, Model]:
    torch.manual_seed(0)
    method = FedMix(options=options)
    return method, Model(method.parts(SPEC))


def used(*use: float) -> ByClass:
    """A client with two classes whose gate uses the experts so much on average, but not in either of them."""
    mean = torch.tensor(use)
    apart = torch.zeros_like(mean)
    apart[:2] = torch.tensor([0.01, -0.01])
    return by_class(torch.tensor([30.0, 0.0, 10.0]), torch.stack([mean + apart, 0 * mean, mean - 3 * apart]))


def test_probabilities_are_mixed_by_a_gate_on_the_image() -> None:
    method, model = made(experts=3)
    gate = (X.flatten(1) @ model.gate[1].weight.T + model.gate[1].bias).softmax(1)
    mixed = sum(gate[:, k : k + 1] * expert(X).softmax(1) for k, expert in enumerate(model.experts))
    torch.testing.assert_close(method.predict(model, X, {}).exp(), mixed)
    torch.testing.assert_close(method.weigh(model, X, {}), gate)
    assert len(method.experts) == 3


def test_a_client_drops_what_its_gate_hardly_uses_and_keeps_the_rest() -> None:
    method, model = made(least_use=0.2)  # of 1/4: less than 0.05
    kept = method.finish(Trained(SPEC, model.state_dict(), {}, used(0.049, 0.6, 0.3, 0.051)), NOW)
    assert kept["choice.kept"].tolist() == [0, 1, 1, 1]
    certain = method.finish(Trained(SPEC, model.state_dict(), {}, used(0.0, 0.0, 1.0, 0.0)), NOW)
    assert certain["choice.kept"].tolist() == [0, 0, 1, 0]


def test_a_dropped_expert_neither_counts_nor_learns_nor_comes_back() -> None:
    method, model = made(least_use=0.0)
    model.choice.kept[2] = 0
    weights = method.weigh(model, X, {})
    assert (weights[:, 2] == 0).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(8))
    method.loss(model, Batch(X, Y), {}).backward()
    for k, expert in enumerate(model.experts):
        moves = any(p.grad is not None and p.grad.abs().sum() > 0 for p in expert.parameters())
        assert moves == (k != 2)
    after = Trained(SPEC, model.state_dict(), {}, by_class(torch.tensor([8.0]), weights.detach().mean(0)[None]))
    assert method.finish(after, NOW)["choice.kept"].tolist() == [1, 1, 0, 1]


def test_the_best_scored_alone_may_answer_and_the_gate_still_learns() -> None:
    method, model = made(active=1)
    scores = model.gate(X).softmax(1)
    best = scores.argmax(1)
    assert len(best.unique()) > 1
    expected = torch.stack([model.experts[k](x[None])[0] for k, x in zip(best.tolist(), X, strict=True)]).log_softmax(1)
    torch.testing.assert_close(method.predict(model, X, {}).log_softmax(1), expected)
    assert torch.equal(method.weigh(model, X, {}), F.one_hot(best, 4).float())
    loss = method.loss(model, Batch(X, Y), {})
    torch.testing.assert_close(loss, F.nll_loss(expected, Y) - scores.amax(1).log().mean())
    assert torch.autograd.grad(loss, model.gate[1].weight)[0].abs().sum() > 0


def test_an_expert_is_the_mean_over_those_who_sent_it_by_their_use_of_it() -> None:
    def expert(k: int, value: float) -> dict[str, torch.Tensor]:
        return {f"experts.{k}.w": torch.full((2,), value)}

    def reply(client: int, samples: int, use: list[float], **tensors: torch.Tensor) -> Reply:
        return Reply(client, Message({**tensors, "use.mean": torch.tensor(use)}, {"samples": samples}))

    server = expert(0, 10.0) | expert(1, 20.0) | expert(2, 30.0)
    replies = [
        reply(0, 100, [0.5, 0.5, 0.0], **expert(0, 1.0), **expert(1, 2.0)),
        reply(3, 50, [1.0, 0.0, 0.0], **expert(0, 4.0)),
    ]
    found = FedMix(options={"experts": 3}).combine(server, replies, NOW)
    # Expert 0: 100·0.5 samples at 1 and 50·1 at 4; expert 1: one client only; expert 2: nobody.
    assert {name: t.tolist() for name, t in found.items()} == {
        "experts.0.w": [2.5] * 2,
        "experts.1.w": [2.0] * 2,
        "experts.2.w": [30.0] * 2,
    }
    assert FedMix(options={"experts": 3}).combine(server, [], NOW) == server


def test_only_kept_experts_go_up_and_the_ledger_shows_it() -> None:
    history = History()
    options = {"least_use": 0.95}  # strict, so that clients drop some at once
    simulation = make_simulation("fedmix", TASK, participation=1.0, observers=(history,), options=options)
    history.started(simulation)
    simulation.step()
    pool = sum(tensor.numel() for tensor in simulation.server.values())
    kept = [simulation.fleet.kept(client)["choice.kept"] for client in range(6)]
    assert 0 < min(own.sum() for own in kept) < 4
    for row, own in zip(sorted(history.rows, key=lambda row: row["client"]), kept, strict=True):
        assert row["down_parameters"] == pool
        assert row["up_parameters"] == own.sum() * pool / 4 + 4


def test_without_a_bound_nobody_drops_anything() -> None:
    simulation = finished("fedmix", TASK, options={"least_use": 0.0})
    assert all(simulation.client_state(client)["choice.kept"].all() for client in range(6))
