"""What makes MOON itself."""

import torch
from support import assert_close, assert_same_bits, finished, make_simulation, make_task
from torch.nn import functional as F

from fedexperts.methods import Batch, Model, Round, State, select
from fedexperts.methods.moon import Moon
from fedexperts.task import ClientSpec

TASK = make_task("cnn5/8")
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)


def test_without_the_contrast_it_is_fedavg() -> None:
    found = finished("moon", TASK, epochs=2, options={"mu": 0.0})
    assert_same_bits(found.server, finished("fedavg", TASK, epochs=2).server)


def test_the_contrast_is_the_papers() -> None:
    torch.manual_seed(0)
    method = Moon(options={"mu": 3.0, "temperature": 0.25})
    model, everyones = Model(method.parts(SPEC)).double(), Model(method.parts(SPEC)).double()
    model.load_state_dict({n: t + 0.02 * torch.randn_like(t) for n, t in model.state_dict().items()})  # own ≠ previous
    received = select(everyones.state_dict(), {"extractor", "head"})
    batch = Batch(torch.randn(8, 1, 8, 8).double(), torch.randint(0, 4, (8,)))
    own, previous, of_all = (part(batch.x) for part in (model.extractor, model.previous, everyones.extractor))
    near, far = (
        ((own * other).sum(1) / own.norm(dim=1) / other.norm(dim=1) / 0.25).exp() for other in (of_all, previous)
    )
    contrast = -(near / (near + far)).log().mean()
    expected = F.cross_entropy(model.head(own), batch.y) + 3 * contrast
    torch.testing.assert_close(method.loss(model, batch, received), expected)


def test_in_a_clients_first_round_the_contrast_moves_nothing_and_later_it_does() -> None:
    def after(method: str, rounds: int) -> State:
        return finished(method, TASK, rounds=rounds, participation=1.0).server

    assert_close(after("moon", 1), after("fedavg", 1))
    moon, fedavg = after("moon", 2)["extractor.fc1.weight"], after("fedavg", 2)["extractor.fc1.weight"]
    assert (moon - fedavg).abs().max() > 1e-6


def test_the_previous_model_is_what_the_client_ended_with_however_long_ago() -> None:
    simulation = make_simulation("moon", TASK, participation=0.34, rounds=8)
    simulation.step()
    away = simulation.sample(1)[0]
    own = {n: t.clone() for n, t in simulation.fleet.kept(away).items()}
    assert not torch.equal(own["extractor.fc1.weight"], simulation.server["extractor.fc1.weight"])
    while away not in simulation.sample(simulation.round + 1):
        simulation.step()
    assert simulation.round > 1
    [[cohort]] = list(simulation.fleet.waves([away]))
    simulation._job(cohort, Round(simulation.round + 1, 8, seed=0))
    for name, tensor in own.items():
        assert torch.equal(cohort.of(0)[name.replace("extractor.", "previous.")], tensor)
        assert torch.equal(cohort.of(0)[name], simulation.server[name])
