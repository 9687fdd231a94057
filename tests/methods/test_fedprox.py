"""What makes FedProx itself."""

import torch
from support import assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.methods import Batch, Model
from fedexperts.methods.fedprox import FedProx
from fedexperts.task import ClientSpec

TASK = make_task("cnn5/8")
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)


def test_without_the_term_it_is_fedavg() -> None:
    found = states(finished("fedprox", TASK, epochs=2, options={"mu": 0.0}))
    assert_same_bits(found, states(finished("fedavg", TASK, epochs=2)))


def test_the_term_is_half_mu_times_the_squared_distance() -> None:
    method, plain = FedProx(options={"mu": 0.6}), FedProx(options={"mu": 0.0})
    model = Model(method.parts(SPEC)).double()
    received = {name: tensor + torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    batch = Batch(torch.randn(8, 1, 8, 8).double(), torch.randint(0, 4, (8,)))
    own = dict(model.named_parameters())
    with_term, without = (m.loss(model, batch, received) for m in (method, plain))
    distance = sum(((own[n] - received[n]) ** 2).sum() for n in own)
    torch.testing.assert_close(with_term - without, 0.3 * distance)
    gradients = (torch.autograd.grad(loss, list(own.values())) for loss in (with_term, without))
    for name, pulled, free in zip(own, *gradients, strict=True):
        torch.testing.assert_close(pulled - free, 0.6 * (own[name] - received[name]))


def test_the_more_it_is_held_the_nearer_it_stays() -> None:
    def way(mu: float) -> float:
        simulation = make_simulation("fedprox", TASK, epochs=3, options={"mu": mu})
        start = simulation.server
        simulation.step()
        return sum(float((simulation.server[name] - tensor).square().sum()) for name, tensor in start.items())

    ways = [way(mu) for mu in (0.0, 0.1, 1.0, 10.0)]
    assert ways == sorted(ways, reverse=True)
    assert ways[-1] < ways[0] / 2
