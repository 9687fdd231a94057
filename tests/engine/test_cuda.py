"""What only a GPU can show; `pytest tests/engine/test_cuda.py tests/methods/test_conformance.py` there."""

import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import Scores, assert_close, assert_same_bits, finished, make_task, make_text_task, states
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from fedexperts.engine import TRACE, Simulation
from fedexperts.engine.choosing import HEAVY, ChoosingExecutor
from fedexperts.engine.executors import CapturedExecutor, Executor
from fedexperts.engine.patches import make_stackable
from fedexperts.engine.stacked import StackedExecutor
from fedexperts.errors import SettingsError
from fedexperts.methods import Batch, Method, Model, State, registry
from fedexperts.methods.at_server import in_batches, shuffled, step
from fedexperts.replay import Pool, Replay, aside

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
TASK = make_task("cnn5,cnn4")


@pytest.fixture(autouse=True)
def memory_given_back() -> Iterator[None]:
    """Several processes may test side by side."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


def on_cpu(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in found.items()}


@pytest.mark.parametrize(
    ("channels", "side", "filters", "kernel", "padding", "bias"),
    [
        (3, 32, 6, 5, 0, True),
        (6, 14, 16, 5, 2, True),
        (20, 9, 40, 3, 1, False),
        (32, 14, 64, 5, 0, True),
        (64, 8, 128, 3, 1, False),
        (128, 8, 128, 1, 0, False),
        (160, 8, 64, 3, 1, False),
        (64, 8, 192, 1, 0, False),
        (8, 8, 16, 1, 1, True),
    ],
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


def test_a_stack_shares_filters_that_are_the_same_for_all() -> None:
    """As PM-MoE's clients ask each module of the pool."""
    layer = nn.Sequential(nn.Conv2d(3, 6, 5), nn.MaxPool2d(2)).cuda()
    make_stackable(layer)
    x = torch.randn(7, 20, 3, 32, 32, device="cuda")
    found = vmap(lambda own: functional_call(layer, dict(layer.named_parameters()), (own,)))(x)
    twin = nn.Sequential(nn.Conv2d(3, 6, 5), nn.MaxPool2d(2)).double()
    twin.load_state_dict({name: tensor.cpu() for name, tensor in layer.state_dict().items()})
    expected = torch.stack([twin(own) for own in x.cpu().double()])
    assert (found.cpu().double() - expected).norm() / expected.norm() < 3e-6


def executor_of(simulation: Simulation, way: str) -> Executor:
    assert isinstance(simulation.executor, ChoosingExecutor)
    return simulation.executor.ways[way]


def steps(simulation: Simulation, way: str) -> list[Replay]:
    """All steps that a run may have captured."""
    executor = executor_of(simulation, way)
    assert isinstance(executor, StackedExecutor | CapturedExecutor)
    assert executor.graphs is not None
    return list(executor.graphs.replays)


def captured(simulation: Simulation, way: str) -> int:
    """How many are."""
    return sum(step.graph is not None for step in steps(simulation, way))


SETTINGS: list[dict[str, Any]] = [
    {},
    {"participation": 1.0, "epochs": 3},
    {"optimizer": "adam", "lr": 0.001},
    {"momentum": 0.9, "weight_decay": 1e-3},
    {"group_size": 2},
    {"store": "device"},
]
SOME = ["fedavg", "fedemoe", "fedmoe", "fedmoe-da", "pm-moe"]


@pytest.mark.parametrize(
    ("name", "settings", "executor"),
    [
        *((name, settings, "stacked") for settings in SETTINGS for name in registry()),
        *((name, SETTINGS[1], "captured") for name in registry()),
        *((name, settings, "captured") for settings in (SETTINGS[0], *SETTINGS[2:]) for name in SOME),
    ],
    ids=str,
)
def test_captured_steps_equal_the_cpu_loop(
    name: str, settings: dict[str, Any], executor: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Enough steps that most run as graphs. DualFed has BatchNorm behind a ReLU: it enlarges units that hardly live some
    # hundred times in every step, so that rounding in float64 is soon seen: it learns more slowly here. With Adam most
    # of all, which makes a step of a gradient that is nothing but rounding, such as that of a bias before a BatchNorm.
    values = {"rounds": 8} | settings
    if name == "dualfed":
        values |= {"rounds": 4, "lr": values.get("lr", 0.05) / (100 if values.get("optimizer") == "adam" else 10)}
    try:
        expected = finished(name, TASK, **values)
    except SettingsError as error:  # SCAFFOLD is for plain SGD
        pytest.skip(str(error))
    simulation = finished(name, TASK, **values, device="cuda", executor=executor)
    assert_close(on_cpu(states(simulation)), states(expected))
    assert captured(simulation, executor) > 0
    assert simulation.evaluate() == expected.evaluate()
    assert not caplog.messages, "steps that could not be captured run without a graph, and say so"


@pytest.mark.parametrize("executor", ["stacked", "captured"])
def test_the_steps_of_a_group_share_memory_and_can_be_captured_again(
    executor: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = make_task("cnn5", (60, 50, 40, 30))  # all with batches of the same width: one group
    values = {"participation": 0.5, "epochs": 3, "optimizer": "adam", "lr": 0.001}
    expected = states(finished("fedrep", task, **values, rounds=8))
    simulation = finished("fedrep", task, **values, rounds=4, device="cuda", executor=executor)
    for _ in range(4):
        graphs = [step.graph for step in steps(simulation, executor) if step.graph is not None]
        assert len(graphs) > 1
        assert len({graph.pool() for graph in graphs}) == 1
        del graphs
        executor_of(simulation, executor).shrink()  # all graphs die, and with them torch's pool
        assert captured(simulation, executor) == 0
        simulation.step()
    assert captured(simulation, executor) > 1
    assert_close(on_cpu(states(simulation)), expected)
    assert not caplog.messages


@pytest.mark.parametrize("executor", ["stacked", "captured"])
def test_a_capture_that_fails_says_why_and_disturbs_no_other(executor: str, caplog: pytest.LogCaptureFixture) -> None:
    failed: list[bool] = []

    class Waiting(Method):
        name = "fedavg"

        def loss(self, model: Model, batch: Batch, received: State) -> torch.Tensor:
            if batch.x.is_cuda and torch.cuda.is_current_stream_capturing() and not failed:
                failed.append(True)
                torch.cuda.synchronize()
            return super().loss(model, batch, received)

    expected = states(finished("fedavg", TASK, rounds=8))
    simulation = finished(Waiting, TASK, rounds=8, device="cuda", executor=executor)
    (said,) = caplog.messages
    assert "run without a CUDA graph" in said
    assert "not permitted when stream is capturing" in said
    assert_close(on_cpu(states(simulation)), expected)
    assert captured(simulation, executor) > 0
    assert_memory_comes_back()


def assert_memory_comes_back() -> None:
    """That two streams have used, which the allocator does not look at as long as it believes in a capture."""
    torch.cuda.empty_cache()
    tensor = torch.empty(2**29, dtype=torch.uint8, device="cuda")
    tensor.record_stream(torch.cuda.Stream())
    held = torch.cuda.memory_reserved()
    del tensor
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= held - 2**29


@pytest.mark.parametrize("broken", [False, True], ids=["ended", "broken"])
def test_a_capture_that_runs_out_of_memory_is_made_again(broken: bool, caplog: pytest.LogCaptureFixture) -> None:
    """In the pool of the other graphs, unless torch cannot end there what has failed."""
    counts, tries = torch.zeros(2, device="cuda"), []

    def plain() -> None:
        counts[1].add_(1)

    def work() -> None:
        counts[0].add_(1)
        if torch.cuda.is_current_stream_capturing():
            tries.append(broken)
            if len(tries) == 1:
                if broken:
                    with suppress(RuntimeError):
                        torch.cuda.synchronize()
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    pool, stream = Pool(), torch.cuda.Stream()
    other, replay = Replay(plain, pool, "another"), Replay(work, pool, "steps")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for one in (other, replay):
            for _ in range(5):
                one()
    torch.cuda.synchronize()
    assert counts.tolist() == [5, 5]
    assert len(tries) == 2
    assert other.graph is not None
    assert replay.graph is not None
    assert (replay.graph.pool() == other.graph.pool()) != broken
    assert not caplog.messages
    assert_memory_comes_back()


@pytest.mark.parametrize(("rows", "size", "epochs"), [(23, 5, 4), (20, 5, 3), (3, 5, 6), (1, 1, 1)])
def test_a_servers_steps_equal_those_on_the_cpu(
    rows: int, size: int, epochs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Round after round."""

    def learned(device: str) -> list[torch.Tensor]:
        rng, found = np.random.default_rng(0), []
        weight, x = (torch.linspace(-1, 1, n * 7, dtype=torch.float64, device=device).view(n, 7) for n in (4, rows))
        y = torch.arange(rows, device=device) % 4
        for _ in range(3):
            leaf = weight.clone().requires_grad_()
            optimizer = torch.optim.SGD([leaf], 0.5)
            order = shuffled(rows, epochs, rng, torch.device(device))
            in_batches(lambda x, y: step(optimizer, cross_entropy(x @ leaf.T, y)), (x, y), order, size)  # noqa: B023
            weight = leaf.detach()
            found.append(weight)
            captured = [graph for graph in aside(leaf.device)._last if graph is not None] if leaf.is_cuda else []
            pools.append({graph.pool() for graph in captured})
        return found

    pools: list[set[Any]] = []
    for found, expected in zip(learned("cuda"), learned("cpu"), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-9)
    assert not caplog.messages
    if epochs > 2:
        assert len(pools[0]) == 1
        assert pools[0] == pools[1] == pools[2], "the graphs of a round use the memory of those of the last"


@pytest.mark.parametrize("name", registry())
def test_captured_evaluations_find_what_the_loop_finds(name: str) -> None:
    """After every round, of clients some of which have trained in it."""
    values = {"rounds": 4 if name == "dualfed" else 8, "participation": 0.5, "store": "device"}
    here, there = Scores(), Scores()
    simulation = finished(name, TASK, **values, device="cuda", executor="stacked", observers=(here,))
    finished(name, TASK, **values, observers=(there,))
    assert here.found == there.found
    executor = executor_of(simulation, "stacked")
    assert isinstance(executor, StackedExecutor)
    assert executor.passes is not None
    assert any(replay.graph is not None for replay in executor.passes.replays)


@pytest.mark.parametrize("name", ["fedmoe", "fedmoe-heads"])
def test_a_fixed_gate_can_be_captured(name: str, caplog: pytest.LogCaptureFixture) -> None:
    values: dict[str, Any] = {"rounds": 8, "options": {"gate_fixed": 0.5}}
    expected = states(finished(name, TASK, **values))
    assert_close(on_cpu(states(finished(name, TASK, **values, device="cuda", executor="stacked"))), expected)
    assert not caplog.messages


@pytest.mark.parametrize(("name", "options"), [("fedmoe-da", {}), ("fedemoe", {"groups": [5], "scale_every": 2})])
@pytest.mark.parametrize("executor", ["stacked", "captured"])
def test_experts_in_blocks_equal_the_cpu_loop(
    name: str, options: dict[str, Any], executor: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As there are with larger batches; so few samples would all go through all experts."""
    values = {"rounds": 6, "options": options}
    expected = states(finished(name, TASK, **values))
    for spare in ("SPARE", "SPARE_LINEAR"):
        monkeypatch.setattr(f"fedexperts.models.experts.{spare}", 0)
    found = [states(finished(name, TASK, **values, device="cuda", executor=executor)) for _ in range(2)]
    assert_close(on_cpu(found[0]), expected)
    assert_same_bits(*found)
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


@pytest.mark.parametrize(
    ("name", "executor"), [*((name, "stacked") for name in registry()), *((name, "captured") for name in SOME)]
)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_same_seed_same_bits(name: str, precision: str, executor: str) -> None:
    runs = [states(finished(name, TASK, device="cuda", executor=executor, precision=precision)) for _ in range(2)]
    assert_same_bits(*runs)


@pytest.mark.parametrize("name", registry())
def test_texts_are_captured_and_repeatable_too(name: str) -> None:
    task, values = make_text_task(), {"rounds": 8}
    on_gpu = {"device": "cuda", "executor": "stacked"}
    simulation = finished(name, task, **values, **on_gpu)
    assert_close(on_cpu(states(simulation)), states(finished(name, task, **values)))
    assert captured(simulation, "stacked") > 0
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


# --- large models

DOUBLE = "resnet18/16,googlenet-512/16"


@pytest.mark.parametrize("name", ["fedavg", "standalone", "fedemoe", "scaffold", "fedala", "feddecomp", "fedmix"])
@pytest.mark.parametrize("executor", ["stacked", "captured"])
def test_backbones_equal_the_cpu_loop_running_statistics_and_all(
    name: str, executor: str, caplog: pytest.LogCaptureFixture
) -> None:
    task, values = make_task(DOUBLE), {"rounds": 4, "lr": 0.01}
    simulation = finished(name, task, **values, device="cuda", executor=executor)
    assert_close(on_cpu(states(simulation)), states(finished(name, task, **values)))
    assert captured(simulation, executor) > 0
    assert not caplog.messages


@pytest.mark.parametrize("model", ["resnet18/8", "mobilenet/8", "googlenet/8"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("executor", ["loop", "captured", "stacked"])
def test_backbones_same_seed_same_bits(model: str, precision: str, executor: str) -> None:
    task, values = make_task(model), {"rounds": 3, "lr": 0.01, "device": "cuda"}
    runs = [states(finished("fedavg", task, **values, precision=precision, executor=executor)) for _ in range(2)]
    assert all(tensor.isfinite().all() for tensor in runs[0].values())
    assert_same_bits(*runs)


def test_one_place_is_enough_for_clients_that_come_and_go() -> None:
    """Other clients in each round, of different models and with different numbers of steps."""
    task = make_task(DOUBLE, tuple(range(20, 140, 10)))
    values = {"rounds": 6, "participation": 0.4, "lr": 0.01, "momentum": 0.9}
    simulation = finished("standalone", task, **values, device="cuda", executor="captured")
    assert_close(on_cpu(states(simulation)), states(finished("standalone", task, **values)))
    assert len(steps(simulation, "captured")) == captured(simulation, "captured") == 2


def test_a_step_that_cannot_be_captured_runs_all_the_same() -> None:
    """Experts with BatchNorm depend on who is sent where: the plain loop, whatever was asked for."""
    task, values = make_task("resnet18/16"), {"rounds": 2}
    expected = states(finished("fedmoe-da", task, **values))
    for executor in ("captured", "stacked", "auto"):
        simulation = finished("fedmoe-da", task, **values, device="cuda", executor=executor)
        assert simulation.executor.said == "loop (resnet18/16)"
        assert_close(on_cpu(states(simulation)), expected)


def test_auto_takes_the_stack_for_small_models_and_the_captured_loop_for_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(HEAVY, "float64", 2e6)  # so that a slim ResNet is a large model
    task, values = make_task("cnn5,resnet18/4"), {"rounds": 4, "lr": 0.01}
    simulation = finished("standalone", task, **values, device="cuda", executor="auto")
    assert simulation.executor.said == "stacked (cnn5), captured (resnet18/4)"
    assert captured(simulation, "stacked") > 0
    assert captured(simulation, "captured") > 0
    assert_close(on_cpu(states(simulation)), states(finished("standalone", task, **values)))


@pytest.mark.parametrize("executor", ["stacked", "captured", "loop"])
def test_a_profile_knows_the_device_from_the_host(tmp_path: Path, executor: str) -> None:
    values = {"device": "cuda", "executor": executor, "precision": "float32", "rounds": 4}
    profiled = finished("fedmoe", TASK, **values, profile=True, folder=tmp_path / "state")
    assert profiled.profile is not None
    host, device = (sum(found.values()) for found in (profiled.profile.spent.host, profiled.profile.spent.device))
    assert 0 < device < 1.1 * host  # the device has nothing to do that the host does not wait for
    assert '"cat": "kernel"' in (tmp_path / TRACE).read_text()
    assert_same_bits(states(profiled), states(finished("fedmoe", TASK, **values)))


@pytest.mark.parametrize("executor", ["stacked", "captured"])
@pytest.mark.parametrize("group_size", [None, 60], ids=["estimated", "found out"])
def test_less_memory_than_the_clients_need(executor: str, group_size: int | None) -> None:
    """Sixty clients of 10 MB (float64), each several times: they go in smaller groups, with graphs of their own."""
    task = make_task("cnn1", (32,) * 60)
    values = {"rounds": 3, "participation": 1.0, "lr": 0.01}
    expected = states(finished("fedmoe", task, **values))
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 1.5e9) / total)
    try:
        simulation = finished(
            "fedmoe", task, **values, device="cuda", executor=executor, group_size=group_size, store="memory"
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    said = "would need about" if group_size is None else "did not fit into memory"
    assert any(said in note for note in simulation.waves.notes)
    assert captured(simulation, executor) > 0
    assert_close(on_cpu(states(simulation)), expected)
