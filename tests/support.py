"""What tests share: a small task with everything that makes clients differ, runs on it, comparisons."""

from typing import Any

import numpy as np
import torch

from fedexperts.config import Settings, TaskSettings, TrainSettings
from fedexperts.data import ClientData, Dataset
from fedexperts.engine import Evaluation, Observer, Simulation
from fedexperts.methods import ByClass, Method, method_class
from fedexperts.task import Task

TRAIN_SIZES = (32, 29, 17, 12, 24, 16)
"""Full batches, ragged last batches, and a client with less than a batch of 16."""
HELD_OUT = 16
FEATURES = 62
"""What the slim models of `make_task` end in."""
LIGHT = {"fedemoe": {"width": 12, "hidden": 6, "scale_every": 2}}
"""Options of methods whose own would take long, where a test gives none."""


def make_task(model: str = "cnn5/8,cnn4/8", sizes: tuple[int, ...] = TRAIN_SIZES, *, common: str | None = None) -> Task:
    """Six clients with different amounts of separable images (8×8, 4 classes) and different models.

    Where those are slim CNNs, what all share is too: arithmetic is not what is tested.
    """
    first = model.partition(",")[0]
    common = first if common is None and first.startswith("cnn") and "/" in first else common
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 4, sum(sizes) + HELD_OUT * len(sizes))
    patterns = rng.integers(0, 200, (4, 1, 8, 8))
    inputs = (patterns[labels] + rng.integers(0, 56, (len(labels), 1, 8, 8))).astype(np.uint8)
    settings = TaskSettings.check({"data": "digits", "clients": len(sizes), "model": model, "common_model": common})
    return Task(settings, Dataset("patterns", inputs, labels, ("a", "b", "c", "d")), _in_turn(sizes))


def make_text_task(model: str = "fasttext,fasttext-wide", sizes: tuple[int, ...] = TRAIN_SIZES) -> Task:
    """The same with sentences: clients of the same sizes, and models for texts."""
    dataset, clients = sentences(sum(sizes) + HELD_OUT * len(sizes)), _in_turn(sizes)
    settings = TaskSettings.check({"data": "ag-news", "clients": len(sizes), "model": model})
    return Task(settings, dataset.in_words(np.concatenate([client.train for client in clients]), 60, 9), clients)


def sentences(count: int) -> Dataset:
    """Sentences of 3 to 9 words in 4 classes; a class has 12 words of its own, and there are 12 that all have."""
    rng = np.random.default_rng(7)
    topics = ("world", "sports", "business", "science")
    labels = rng.integers(0, len(topics), count)
    texts = []
    for topic in labels:
        words = [f"{topics[topic]}{word}" for word in rng.integers(0, 12, rng.integers(2, 6))]
        words += [f"any{word}" for word in rng.integers(0, 12, rng.integers(1, 4))]
        texts.append(" ".join(rng.permutation(words)).capitalize() + ".")
    return Dataset("sentences", np.array(texts), labels, topics)


def _in_turn(sizes: tuple[int, ...]) -> tuple[ClientData, ...]:
    """Clients with so many training samples each, and with 8 for validation and 8 for testing."""
    ends = np.cumsum([size + HELD_OUT for size in sizes])
    owned = np.split(np.arange(ends[-1]), ends[:-1])
    return tuple(ClientData(own[:-HELD_OUT], own[-HELD_OUT:-8], own[-8:]) for own in owned)


class Scores(Observer):
    """Every client's scores in every round."""

    def __init__(self) -> None:
        self.found: list[list[Evaluation]] = []

    def evaluated(self, round_number: int, results: list[Evaluation]) -> None:
        self.found.append(results)


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
    own = LIGHT.get(name, {}) if options is None else options
    return simulation(chosen(settings.part(TrainSettings), own), task, settings, observers, folder)


def by_class(counts: torch.Tensor, means: torch.Tensor) -> ByClass:
    """What was collected of so many samples of each class."""
    return ByClass(counts, means, counts.nonzero().squeeze(1))


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
        assert tensor.dtype in (torch.float64, torch.int64, torch.uint8, torch.bool), name
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different
