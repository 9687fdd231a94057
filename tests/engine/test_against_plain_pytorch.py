"""The engine against a loop as one would write it by hand: nn.Module, torch.optim, one client after another."""

import copy
import math

import numpy as np
import pytest
import torch
from support import assert_close, finished, make_task
from torch import nn
from torch.nn import functional as F

from fedexperts.engine import scaled
from fedexperts.methods import Method, Round, Stage
from fedexperts.models import build
from fedexperts.randomness import SERVER, stream, torch_stream

TASK = make_task("cnn5", sizes=(32, 48, 20))


def by_hand(optimizer: str, rounds: int, epochs: int, **settings: float) -> dict[str, torch.Tensor]:
    """FedAvg on `TASK` in float64, batches of 16."""
    with torch_stream(0, "init", SERVER):
        server = nn.ModuleDict(build("cnn5", (1, 8, 8), 4)).double()
    for now in range(1, rounds + 1):
        models = []
        for k, client in enumerate(TASK.clients):
            model = copy.deepcopy(server)
            kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
            steps = kind(model.parameters(), **settings)
            rng = stream(0, "batches", k, now, 0)
            for _ in range(epochs):
                order = rng.permutation(client.train)
                order = np.concatenate([order, order])[: 16 * math.ceil(len(order) / 16)]
                for index in order.reshape(-1, 16):
                    x = scaled(torch.from_numpy(TASK.dataset.inputs[index]), torch.float64)
                    y = torch.from_numpy(TASK.dataset.labels[index])
                    steps.zero_grad()
                    F.cross_entropy(model["head"](model["extractor"](x)), y).backward()
                    steps.step()
            models.append(model)
        total = sum(len(client.train) for client in TASK.clients)
        with torch.no_grad():
            for name, parameter in server.named_parameters():
                parts = [
                    m.get_parameter(name) * (len(c.train) / total) for m, c in zip(models, TASK.clients, strict=True)
                ]
                parameter.copy_(sum(parts))
    return {f"server/{name}": parameter.detach() for name, parameter in server.named_parameters()}


@pytest.mark.parametrize("executor", ["loop", "workers", "stacked"])
@pytest.mark.parametrize(
    ("optimizer", "epochs", "settings"),
    [
        ("sgd", 1, {"lr": 0.05}),
        ("sgd", 2, {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}),
        ("adam", 1, {"lr": 0.001, "weight_decay": 1e-3}),
    ],
)
def test_fedavg_equals_the_loop_by_hand(executor: str, optimizer: str, epochs: int, settings: dict[str, float]) -> None:
    expected = by_hand(optimizer, rounds=2, epochs=epochs, **settings)
    simulation = finished(
        "fedavg", TASK, executor=executor, rounds=2, epochs=epochs, optimizer=optimizer, participation=1.0, **settings
    )
    assert_close({f"server/{name}": tensor for name, tensor in simulation.server.items()}, expected)


class PlainSteps(Method):
    name = "plain-steps"

    def stages(self, now: Round) -> list[Stage]:
        return [Stage(("extractor", "head"), self.loss, self.train.epochs, plain=True)]


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"momentum": 0.9}], ids=str)
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_plain_stage_makes_steps_of_plain_sgd_whatever_the_clients_use(
    executor: str, settings: dict[str, str]
) -> None:
    expected = by_hand("sgd", rounds=1, epochs=1, lr=0.05)
    values = {"executor": executor, "rounds": 1, "participation": 1.0, "weight_decay": 0.1, **settings}
    simulation = finished(PlainSteps, TASK, **values)
    assert_close({f"server/{name}": tensor for name, tensor in simulation.server.items()}, expected)
