"""Large models with BatchNorm in every executor, and which executor is taken. Captured loops: test_cuda.py."""

import copy
import re
from functools import cache

import numpy as np
import pytest
import torch
from support import assert_close, assert_same_bits, finished, make_simulation, make_task, states
from torch import nn
from torch.func import functional_call, vmap

from fedexperts.api import run
from fedexperts.config import EngineSettings, TaskSettings, TrainSettings
from fedexperts.data import ClientData, Dataset
from fedexperts.engine import Job, Simulation
from fedexperts.engine.choosing import GROUPED, ChoosingExecutor, times
from fedexperts.engine.executors import LoopExecutor
from fedexperts.engine.patches import StackedNorm, make_stackable
from fedexperts.errors import SettingsError
from fedexperts.methods import Method, Model, Round, State
from fedexperts.models import build
from fedexperts.task import Task

MODELS = "resnet18/16,googlenet-512/16"
TASK = make_task(MODELS, (20, 16))


@cache
def one_by_one(method: str) -> dict[str, torch.Tensor]:
    return states(finished(method, TASK, rounds=2))


@pytest.mark.parametrize(
    ("method", "executor"), [("fedavg", "stacked"), ("standalone", "stacked"), ("standalone", "workers")]
)
def test_backbones_together_equal_one_by_one_running_statistics_and_all(method: str, executor: str) -> None:
    expected = one_by_one(method)
    assert any(name.endswith("running_var") for name in expected)
    assert_close(states(finished(method, TASK, rounds=2, executor=executor)), expected)


def test_convolutions_of_each_channel_are_stacked_too() -> None:
    task = make_task("mobilenet/16", (16, 16))  # one step: without short cuts the last digits grow quickly
    found = states(finished("standalone", task, rounds=1, executor="stacked"))
    assert_close(found, states(finished("standalone", task, rounds=1)))


def test_torchs_own_norm_is_stacked_as_ours_is() -> None:
    """As models of the user's own have it; with the channels last, as convolutions in a stack leave them."""
    stacks = torch.randn(2, 5, 4, 4, 3, dtype=torch.float64).permute(0, 1, 4, 2, 3)
    ours, theirs = nn.Sequential(nn.BatchNorm2d(3).double()), nn.BatchNorm2d(3).double()
    make_stackable(ours)
    assert isinstance(ours[0], StackedNorm)
    tensors = {n: torch.stack([t, t]) for n, t in copy.deepcopy(ours.state_dict()).items()}
    found = vmap(lambda own, x: functional_call(ours, own, x))(tensors, stacks)
    for position, x in enumerate(stacks):
        alone = copy.deepcopy(theirs)
        torch.testing.assert_close(found[position], alone(x))
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(tensors[f"0.{name}"][position], tensor)
    unusual = nn.Sequential(nn.BatchNorm2d(3, momentum=None), nn.BatchNorm2d(3, affine=False))
    make_stackable(unusual)
    assert [type(layer) for layer in unusual] == [nn.BatchNorm2d, nn.BatchNorm2d]


@pytest.mark.parametrize("model", ["resnet18/16", "mobilenet/16"])
def test_bfloat16_in_a_stack(model: str) -> None:
    finished("fedavg", make_task(model, (16, 16)), rounds=1, executor="stacked", precision="bfloat16")


def test_experts_that_normalise_run_one_by_one_whatever_was_asked_for() -> None:
    task = make_task("resnet18/16", (20, 16))
    stacked = finished("fedmoe-da", task, rounds=2, executor="stacked")
    assert stacked.executor.said == "loop (resnet18/16)"
    assert_same_bits(states(stacked), states(finished("fedmoe-da", task, rounds=2)))


def a_job(model: str, method: str = "fedavg") -> tuple[Simulation, Job]:
    """One client with a batch of two images of 32×32 pixels, about to train."""
    rng = np.random.default_rng(0)
    dataset = Dataset("noise", rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8), np.arange(6) % 2, ("a", "b"))
    client = ClientData(np.arange(2), np.arange(2, 4), np.arange(4, 6))
    task = Task(TaskSettings.check({"clients": 1, "model": model}), dataset, (client,))
    simulation = make_simulation(method, task, precision="float32", batch_size=2)
    ((cohort,),) = simulation.fleet.waves([0])
    return simulation, simulation._job(cohort, Round(1, 3, seed=0))


@pytest.mark.parametrize(
    ("model", "method", "precision", "way"),
    [
        ("cnn-pm", "fedavg", "tf32", "stacked"),
        ("cnn1", "fedmoe", "float32", "stacked"),
        ("resnet18/8", "fedavg", "bfloat16", "stacked"),
        ("resnet18", "fedavg", "float32", "stacked"),
        ("resnet18", "fedavg", "tf32", "captured"),
        ("resnet18", "fedemoe", "bfloat16", "captured"),
        ("resnet34", "fedavg", "float32", "captured"),
        ("resnet18/8", "fedmoe-da", "float32", "loop"),
    ],
)
def test_what_is_chosen_on_a_gpu_follows_from_the_work_of_a_sample(
    model: str, method: str, precision: str, way: str
) -> None:
    simulation, job = a_job(model, method)
    engine = EngineSettings.check({"precision": precision})
    chooser = ChoosingExecutor(simulation.data, simulation.settings.part(TrainSettings), engine)
    before = {name: tensor.clone() for name, tensor in job.cohort.tensors.items()}
    assert chooser.way(job) == way
    assert_same_bits(dict(job.cohort.tensors), before)


@pytest.mark.parametrize(("executor", "says"), [("auto", r"loop|\d+ workers"), ("stacked", r"stacked \(cnn5\)")])
def test_a_run_says_how_it_was_computed_and_on_a_cpu_auto_is_a_loop(executor: str, says: str) -> None:
    task = make_task("cnn5", (16, 16))
    result = run("standalone", task, rounds=1, batch_size=16, device="cpu", executor=executor)
    assert re.fullmatch(says, result.record.environment["executor"])
    assert isinstance(result.simulation.executor, LoopExecutor) == (executor == "auto")


def test_captured_steps_need_cuda() -> None:
    with pytest.raises(SettingsError, match="executor 'captured' needs a CUDA device"):
        make_simulation("fedavg", TASK, executor="captured")


@pytest.mark.parametrize("executor", ["loop", "workers"])
def test_on_a_cpu_images_and_filters_have_their_channels_last(executor: str) -> None:
    seen: list[bool] = []

    class Watched(Method):
        name = "fedavg"

        def predict(self, model: Model, x: torch.Tensor, received: State) -> torch.Tensor:
            both = (model.extractor.conv1.weight, model.extractor.conv2.weight, x)
            seen.extend(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in both)
            return super().predict(model, x, received)

    simulation = finished(Watched, make_task("cnn5"), executor=executor)
    assert seen
    assert all(seen)
    assert_close(states(simulation), states(finished("fedavg", make_task("cnn5"), executor="stacked")))


@pytest.mark.parametrize(("model", "often"), [("resnet18/16", 1), ("mobilenet/16", GROUPED), ("cnn5", 1)])
def test_the_work_of_grouped_convolutions_counts_more_often(model: str, often: int) -> None:
    assert times(build(model, (3, 32, 32), 10)["extractor"]) == often
