"""What makes FedAPEN itself."""

import pytest
import torch
from support import finished, make_simulation, make_task
from torch.nn import functional as F

from fedexperts.config import TrainSettings
from fedexperts.methods import Batch, Model, Round, Trained, select
from fedexperts.methods.fedapen import FedAPEN
from fedexperts.methods.mutual import divergence
from fedexperts.task import ClientSpec

TASK = make_task("cnn5,cnn4")
NOW = Round(1, 10, seed=0)
SPEC = ClientSpec(id=0, model="cnn4", shape=(1, 8, 8), classes=4, samples=100)


def made(weight: float) -> Model:
    torch.manual_seed(0)
    model = Model(FedAPEN().parts(SPEC))
    model.ensemble.weight.data.fill_(weight)
    return model


def batch() -> Batch:
    torch.manual_seed(1)
    return Batch(torch.randn(8, 1, 8, 8), torch.randint(0, 4, (8,)))


@pytest.mark.parametrize(("weight", "part"), [(0.0, "shared"), (1.0, "private"), (-0.1, "shared"), (1.2, "private")])
def test_at_its_ends_the_ensemble_is_one_of_the_models(weight: float, part: str) -> None:
    model, x = made(weight), batch().x
    torch.testing.assert_close(FedAPEN().predict(model, x, {}), getattr(model, part)(x))


def test_the_ensemble_mixes_logits_by_the_weights_that_are_shown() -> None:
    method, model, x = FedAPEN(), made(0.3), batch().x
    weights = method.weigh(model, x, {})
    assert weights.shape == (8, len(method.experts))
    mixed = sum(weights[:, i : i + 1] * getattr(model, part)(x) for i, part in enumerate(method.experts))
    torch.testing.assert_close(method.predict(model, x, {}), mixed)
    shared, private = method.represent(model, x, {}).split(500, dim=1)
    torch.testing.assert_close(model.shared.head(shared), model.shared(x))
    torch.testing.assert_close(model.private.head(private), model.private(x))


def test_the_weight_is_learned_first_and_alone_then_both_models() -> None:
    method = FedAPEN(TrainSettings.check({"epochs": 3}), {"ensemble_lr": 0.2, "ensemble_epochs": 2})
    first, second = method.stages(NOW)
    assert (first.parts, first.epochs, first.rates) == (("ensemble",), 2, {"ensemble": 0.2})
    assert (second.parts, second.epochs, second.rates) == (("shared", "private"), 3, {})
    assert first.identity != second.identity


@pytest.mark.parametrize("bad", ["shared", "private"])
def test_the_weight_goes_to_the_better_model(bad: str) -> None:
    """Both models are trained for some rounds; then one forgets all, and only λ is learned."""
    simulation = finished(
        "fedapen", TASK, participation=1.0, rounds=8, epochs=3, lr=0.2, options={"ensemble_share": 0.5}
    )
    [cohort, *_] = next(simulation.fleet.waves([0, 2, 4]))
    job = simulation._job(cohort, NOW)
    job.lessons = job.lessons[:1]
    before = cohort.tensors["ensemble.weight"].clone()
    for name, tensor in select(cohort.tensors, {bad}).items():
        tensor.normal_(0, 0.05, generator=torch.Generator().manual_seed(len(name)))
    simulation.executor.train([job])
    moved = cohort.tensors["ensemble.weight"] - before
    assert len(moved) > 0
    assert (moved > 0).all() if bad == "shared" else (moved < 0).all()


def test_a_weight_at_the_border_can_turn_round_and_comes_home() -> None:
    method, model = FedAPEN(), made(1.5)
    loss = F.cross_entropy(method.predict(model, batch().x, {}), batch().y)
    [gradient] = torch.autograd.grad(loss, [model.ensemble.weight])
    at_border = made(1.0)
    loss = F.cross_entropy(method.predict(at_border, batch().x, {}), batch().y)
    assert gradient != 0
    assert torch.equal(gradient, torch.autograd.grad(loss, [at_border.ensemble.weight])[0])
    assert method.finish(Trained(SPEC, model.state_dict(), {}), NOW)["ensemble.weight"] == 1.0


def test_each_model_learns_from_labels_the_other_model_and_the_ensemble() -> None:
    method, model, (x, y) = FedAPEN(), made(0.3), batch()

    def gradients(loss: torch.Tensor, part: str) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss, list(getattr(model, part).parameters())))

    shared, private = model.shared(x), model.private(x)
    for part, own, other, ensemble in [
        ("shared", shared, private, 0.7 * shared + 0.3 * private.detach()),
        ("private", private, shared, 0.7 * shared.detach() + 0.3 * private),
    ]:
        expected = F.cross_entropy(own, y) + divergence(other, own) + F.cross_entropy(ensemble, y)
        found = gradients(method.loss(model, Batch(x, y), {}), part)
        for a, b in zip(found, gradients(expected, part), strict=True):
            torch.testing.assert_close(a, b)


def test_the_weight_never_leaves_and_differs_between_clients() -> None:
    simulation = make_simulation("fedapen", TASK, participation=1.0, options={"ensemble_lr": 0.1})
    simulation.run()
    assert not any(name.startswith("ensemble") for name in simulation.server)
    assert len({simulation.client_state(k)["ensemble.weight"].item() for k in range(6)}) == 6
