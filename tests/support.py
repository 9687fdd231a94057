"""What tests share: a small task with everything that makes clients differ, runs on it, comparisons."""

from typing import Any

import numpy as np
import torch

from fedexperts.config import Settings, TaskSettings, TrainSettings
from fedexperts.data import ClientData, Dataset
from fedexperts.engine import Observer, Simulation
from fedexperts.methods import Method, method_class
from fedexperts.task import Task

TRAIN_SIZES = (32, 29, 17, 12, 24, 16)
"""Full batches, ragged last batches, and a client with less than a batch of 16."""


def make_task(model: str = "cnn5,cnn4", sizes: tuple[int, ...] = TRAIN_SIZES) -> Task:
    """Six clients with different amounts of separable images (8×8, 4 classes) and different models."""
    rng = np.random.default_rng(7)
    held_out = 16
    labels = rng.integers(0, 4, sum(sizes) + held_out * len(sizes))
    patterns = rng.integers(0, 200, (4, 1, 8, 8))
    inputs = (patterns[labels] + rng.integers(0, 56, (len(labels), 1, 8, 8))).astype(np.uint8)
    clients, start = [], 0
    for size in sizes:
        own = np.arange(start, start := start + size + held_out)
        clients.append(ClientData(own[:size], own[size : size + 8], own[size + 8 :]))
    settings = TaskSettings.check({"data": "digits", "clients": len(sizes), "model": model})
    return Task(settings, Dataset("patterns", inputs, labels, ("a", "b", "c", "d")), tuple(clients))


def make_simulation(
    method: str | type[Method],
    task: Task,
    *,
    observers: tuple[Observer, ...] = (),
    folder: Any = None,
    simulation: type[Simulation] = Simulation,
    options: dict[str, Any] | None = None,
    **values: Any,
) -> Simulation:
    """A simulation with settings that suit `make_task`."""
    name = method if isinstance(method, str) else method.name
    small = {"rounds": 3, "batch_size": 16, "lr": 0.05, "participation": 0.7}
    engine = {"executor": "loop", "device": "cpu", "precision": "float64"}
    settings = Settings.check(task.settings.model_dump() | {"method": name} | small | engine | values)
    chosen = method_class(name) if isinstance(method, str) else method
    return simulation(chosen(settings.part(TrainSettings), options), task, settings, observers, folder)


def finished(method: str | type[Method], task: Task, **values: Any) -> Simulation:
    made = make_simulation(method, task, **values)
    made.run()
    return made


def states(simulation: Simulation) -> dict[str, torch.Tensor]:
    """Everything that a run ends with: the server's state and every client's model."""
    state = {f"server/{name}": tensor for name, tensor in simulation.server.items()}
    for client in range(len(simulation.specs)):
        state |= {f"{client}/{name}": tensor for name, tensor in simulation.client_state(client).items()}
    return state


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Equal to the tolerance of float64."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensor.dtype in (torch.float64, torch.int64, torch.bool), name
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different
