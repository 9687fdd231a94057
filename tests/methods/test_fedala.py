"""What makes FedALA itself."""

import pytest
import torch
from support import assert_close, assert_same_bits, finished, make_simulation, make_task
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn import functional as F

from fedexperts.config import TrainSettings
from fedexperts.engine import Simulation
from fedexperts.engine.batches import Portion
from fedexperts.methods import Model, Round, Stage, State, part_of, select
from fedexperts.methods.fedala import FedALA

TASK = make_task("cnn5/8")
CLIENT = 1  # with a last batch that is not full


class Unmixed(FedALA):
    """All of the global model, always."""

    name = "unmixed"

    def stages(self, now: Round) -> list[Stage]:
        return [super().stages(now)[-1]]


def of_the_model(state: State) -> State:
    return select(state, {"extractor", "head"})


def test_the_first_round_is_fedavgs_bit_for_bit() -> None:
    assert_same_bits(finished("fedala", TASK, rounds=1).server, finished("fedavg", TASK, rounds=1).server)


def test_with_weights_of_one_it_is_fedavg_and_with_learned_ones_it_is_not() -> None:
    expected = finished("fedavg", TASK)
    unmixed = finished(Unmixed, TASK)
    assert_close(unmixed.server, expected.server)
    assert_close(of_the_model(unmixed.client_state(0)), expected.client_state(0))
    found = finished("fedala", TASK)
    assert not torch.allclose(found.server["head.weight"], expected.server["head.weight"])


def by_hand(simulation: Simulation, mixed: set[str], lr: float) -> tuple[State, State]:
    """Round 2 of one client: its weights W_i and its trained model, clipped and mixed as the paper prints it."""
    method = simulation.method
    everyones, own = dict(simulation.server), simulation.fleet.kept(CLIENT)
    skeleton = Model(super(FedALA, method).parts(simulation.specs[CLIENT])).double()  # type: ignore[misc]

    def loss(model: State, index: Tensor) -> Tensor:
        x, y = simulation.data.x(index), simulation.data.y(index)
        return functional_call(skeleton, model, (lambda m: F.cross_entropy(m.head(m.extractor(x)), y),))

    def aggregated(weights: State) -> State:
        return everyones | {n: own[n] + (everyones[n] - own[n]) * weight for n, weight in weights.items()}

    first, second = method.stages(simulation.now(2))
    weights = {name: torch.ones_like(own[name]) for name in mixed}
    for index in torch.from_numpy(simulation.batches.take(CLIENT, 2, 0, Portion(first.epochs, first.share))):
        slopes = grad(loss)(aggregated(weights), index)
        weights = {n: (w - lr * slopes[n] * (everyones[n] - own[n])).clamp(0, 1) for n, w in weights.items()}
    model = {name: tensor.clone().requires_grad_() for name, tensor in aggregated(weights).items()}
    adam = torch.optim.Adam(model.values(), simulation.settings.lr)
    for index in torch.from_numpy(simulation.batches.take(CLIENT, 2, 1, Portion(second.epochs))):
        adam.zero_grad()
        loss(model, index).backward()
        adam.step()
    return weights, {name: tensor.detach() for name, tensor in model.items()}


@pytest.mark.parametrize("layers", [1, 3])
def test_a_client_mixes_clips_and_trains_as_by_hand(layers: int) -> None:
    mixed = {
        f"{layer}.{kind}"
        for layer in ("head", "extractor.fc2", "extractor.fc1")[:layers]
        for kind in ("weight", "bias")
    }
    options = {"layers": layers, "mixing_lr": 1e4, "first_epochs": 3}
    simulation = make_simulation("fedala", TASK, options=options, participation=1.0, optimizer="adam", lr=0.002)
    simulation.step()
    weights, model = by_hand(simulation, mixed, lr=1e4)
    assert weights["head.weight"].unique().numel() > 100
    assert weights["head.weight"].aminmax() == (0, 1)  # there was something to clip on both sides
    simulation.step()
    kept = simulation.fleet.kept(CLIENT)
    assert_close({n: kept[f"mixing.{n.replace('.', '/')}"] for n in mixed}, weights)
    assert_close({n: kept[n] for n in mixed}, {n: model[n] for n in mixed})
    assert {part_of(name) for name in kept} == ({"head", "mixing"} if layers == 1 else {"extractor", "head", "mixing"})


def test_a_client_is_used_with_its_own_mixture_of_the_last_layer_and_everyones_others() -> None:
    simulation = finished("fedala", TASK, options={"mixing_lr": 50.0}, participation=1.0)
    used, kept, server = simulation.client_state(CLIENT), simulation.fleet.kept(CLIENT), simulation.server
    weight = kept["mixing.head/weight"]
    expected = (1 - weight) * kept["head.weight"] + weight * server["head.weight"]
    torch.testing.assert_close(used["head.weight"], expected)
    assert_same_bits(select(used, {"extractor"}), select(server, {"extractor"}))
    model = Model(simulation.method.parts(simulation.specs[CLIENT])).double()
    model.load_state_dict(used)
    x = simulation.data.x(torch.from_numpy(TASK.clients[CLIENT].test))
    answer = simulation.method.predict(model, x, dict(server))
    torch.testing.assert_close(answer, model.head(model.extractor(x)))


def test_the_weights_are_learned_on_a_share_that_moves_from_round_to_round() -> None:
    method = FedALA(TrainSettings.check({"epochs": 5}), {"first_epochs": 7, "mixing_share": 0.25})
    rounds = [method.stages(Round(number, 9, seed=0)) for number in (1, 2, 3)]
    assert [[stage.epochs for stage in stages] for stages in rounds] == [[5], [7, 5], [1, 5]]
    shares = [stages[0].share for stages in rounds[1:]]
    assert shares[0] != shares[1]
    for begin, end in shares:
        assert 0 <= begin < end <= 1
        assert end - begin == pytest.approx(0.25)
