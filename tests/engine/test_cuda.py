"""What only a GPU can show; `pytest tests/engine/test_cuda.py tests/methods/test_conformance.py` there."""

from typing import Any

import pytest
import torch
from support import assert_close, assert_same_bits, finished, make_task, make_text_task, states
from torch import nn
from torch.func import functional_call, vmap

from fedexperts.engine.executors import StackedExecutor
from fedexperts.engine.patches import make_stackable
from fedexperts.errors import SettingsError
from fedexperts.methods import registry

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
TASK = make_task()


def on_cpu(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in found.items()}


@pytest.mark.parametrize(
    ("channels", "side", "filters", "kernel", "padding", "bias"),
    [(3, 32, 6, 5, 0, True), (6, 14, 16, 5, 2, True), (20, 9, 40, 3, 1, False), (32, 14, 64, 5, 0, True)],
)
def test_stacked_convolutions_have_the_numbers_of_plain_ones(
    channels: int, side: int, filters: int, kernel: int, padding: int, bias: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = [(3, 50, channels, side, side), (3, filters, channels, kernel, kernel), (3, filters)][: 2 + bias]
    given = [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    layer = nn.Sequential(nn.Conv2d(channels, filters, kernel, padding=padding, bias=bias), nn.MaxPool2d(2))
    make_stackable(layer)

    def called(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, dict(zip(("0.weight", "0.bias"), weights, strict=False)), (x,))

    expected = torch.stack([called(*client) for client in zip(*given, strict=True)])
    slope = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    expected = [expected, *torch.autograd.grad(expected, given, slope)]
    on_gpu = [tensor.detach().float().cuda().requires_grad_() for tensor in given]
    found = vmap(called)(*on_gpu)
    found = [found, *torch.autograd.grad(found, on_gpu, slope.float().cuda())]
    for one, other in zip(found, expected, strict=True):
        error = (one.cpu().double() - other).norm() / other.norm()
        assert error < 3e-6


@pytest.mark.parametrize("name", registry())
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"participation": 1.0, "epochs": 3},
        {"optimizer": "adam", "lr": 0.001},
        {"momentum": 0.9, "weight_decay": 1e-3},
        {"group_size": 2},
        {"store": "device"},
    ],
    ids=str,
)
def test_captured_steps_equal_the_cpu_loop(
    name: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    values = {"rounds": 8} | settings  # enough steps that most run as graphs
    try:
        expected = states(finished(name, TASK, **values))
    except SettingsError as error:  # SCAFFOLD is for plain SGD
        pytest.skip(str(error))
    simulation = finished(name, TASK, **values, device="cuda", executor="stacked")
    assert_close(on_cpu(states(simulation)), expected)
    assert isinstance(simulation.executor, StackedExecutor)
    assert simulation.executor._graphs is not None
    captured = sum(len(track.graphs) for track in simulation.executor._graphs._tracks.values())
    assert captured > 0
    assert not caplog.messages, "steps that could not be captured run without a graph, and say so"


@pytest.mark.parametrize("name", ["fedmoe", "fedmoe-heads"])
def test_a_fixed_gate_can_be_captured(name: str, caplog: pytest.LogCaptureFixture) -> None:
    values: dict[str, Any] = {"rounds": 8, "options": {"gate_fixed": 0.5}}
    expected = states(finished(name, TASK, **values))
    assert_close(on_cpu(states(finished(name, TASK, **values, device="cuda", executor="stacked"))), expected)
    assert not caplog.messages


def test_experts_that_learn_from_each_other_equal_the_cpu_loop() -> None:
    values = {"rounds": 8, "options": {"mixing": "distil", "experts": (2, 3)}}
    expected = states(finished("fedmoe-da", TASK, **values))
    found = [states(finished("fedmoe-da", TASK, **values, device="cuda", executor="stacked")) for _ in range(2)]
    assert_close(on_cpu(found[0]), expected)
    assert_same_bits(*found)


def test_graphs_of_groups_that_come_and_go_do_not_disturb_each_other() -> None:
    # Ten of forty clients with five models: in each round other groups, of other sizes, run side by side.
    task = make_task("heterogeneous", tuple(range(40, 640, 15)))
    values = {"rounds": 20, "participation": 0.25, "precision": "float32", "lr": 0.01}
    eager = finished("standalone", task, **values, device="cuda", executor="stacked", graphs=False)
    captured = finished("standalone", task, **values, device="cuda", executor="stacked")
    expected, found = states(eager), states(captured)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", registry())
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_same_seed_same_bits(name: str, precision: str) -> None:
    runs = [states(finished(name, TASK, device="cuda", executor="stacked", precision=precision)) for _ in range(2)]
    assert_same_bits(*runs)


@pytest.mark.parametrize("name", registry())
def test_texts_are_captured_and_repeatable_too(name: str) -> None:
    task, values = make_text_task(), {"rounds": 8}
    on_gpu = {"device": "cuda", "executor": "stacked"}
    simulation = finished(name, task, **values, **on_gpu)
    assert_close(on_cpu(states(simulation)), states(finished(name, task, **values)))
    assert simulation.executor._graphs is not None  # type: ignore[attr-defined]
    assert all(track.graphs for track in simulation.executor._graphs._tracks.values())  # type: ignore[attr-defined]
    runs = [states(finished(name, task, **values, **on_gpu, precision="float32")) for _ in range(2)]
    assert_same_bits(*runs)


@pytest.mark.parametrize("name", registry())
def test_the_plain_loop_on_the_gpu_too(name: str) -> None:
    assert_close(on_cpu(states(finished(name, TASK, device="cuda"))), states(finished(name, TASK)))


@pytest.mark.parametrize("name", registry())
def test_compiled_steps_equal_the_cpu_loop(name: str) -> None:
    values = {"rounds": 2, "participation": 1.0}
    expected = states(finished(name, TASK, **values))
    assert_close(
        on_cpu(states(finished(name, TASK, **values, device="cuda", executor="stacked", compile=True))), expected
    )
