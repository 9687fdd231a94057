"""Memory that is short: estimated before, and found out meanwhile. Results do not show it."""

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import assert_close, assert_same_bits, finished, make_simulation, make_task, states
from torch import Tensor, nn

import fedexperts
from fedexperts.engine import Job, Query, Simulation
from fedexperts.engine.executors import LEAST_BATCH
from fedexperts.engine.memory import Need, free_memory, kept_for_backward, split
from fedexperts.errors import RoomError
from fedexperts.measure import History
from fedexperts.replay import ran_out

TASK = make_task("cnn5,cnn4")
EVERYONE = {"participation": 1.0, "rounds": 3}


def tight(simulation: Simulation, training: int, asking: int = 100, after: int = 0) -> Simulation:
    """Let a simulation run on a device that has no room for more clients in training, or when they are asked.

    Memory becomes short `after` so many calls, and not before the work is done: what it changed is changed.
    """
    kind = type(simulation.executor)
    calls = iter(range(1_000_000))

    def check(cohorts: Sequence[Any], most: int) -> None:
        if next(calls) >= after and sum(len(one.cohort) for one in cohorts) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nMore about it.")

    class Tight(kind):  # type: ignore[misc, valid-type]
        def _train(self, jobs: Sequence[Job]) -> None:
            super()._train(jobs)
            check(jobs, training)

        def _map(self, queries: Sequence[Query]) -> list[Tensor]:
            answers: list[Tensor] = super()._map(queries)
            check(queries, asking)
            return answers

    simulation.executor.__class__ = Tight
    return simulation


@pytest.mark.parametrize(
    ("name", "executor", "after"),
    [
        ("fedmoe", "stacked", 0),
        ("fedmoe", "stacked", 2),
        ("fedmoe", "stacked", 3),
        ("fedmoe", "workers", 2),
        ("fedmoe-da", "loop", 2),
        ("scaffold", "loop", 2),
        ("fedgh", "loop", 3),
        ("fedgh", "loop", 4),
    ],
)
def test_a_wave_without_room_is_done_again_with_fewer(name: str, executor: str, after: int) -> None:
    # fedgh collects over the training data: a wave may fail when its training is over. After the first
    # round, which has an evaluation too, what clients keep is on the device only.
    seen, expected_seen = History(), History()
    expected = finished(name, TASK, **EVERYONE, executor=executor, observers=(expected_seen,))
    simulation = tight(
        make_simulation(name, TASK, **EVERYONE, executor=executor, observers=(seen,)), training=2, asking=2, after=after
    )
    simulation.run()
    assert simulation.fleet.limit in (1, 2)
    assert simulation.waves.notes[0] == "6 clients at once did not fit into memory: 3 at a time"
    assert_close(states(simulation), states(expected))
    same = {"round", "client", "up_bytes", "down_bytes", "peer_bytes", "test_accuracy", "flops"}
    assert [{k: row[k] for k in same} for row in seen.rows] == [{k: row[k] for k in same} for row in expected_seen.rows]


@pytest.mark.parametrize("name", ["fedavg", "fedproto"])
def test_a_wave_that_is_over_holds_no_memory(name: str) -> None:
    """FedProto collects over the training data: that pass knows its clients' tensors too."""
    simulation = make_simulation(name, TASK, participation=1.0, group_size=2)
    jobs, _ = simulation.train(simulation.sample(1), simulation.now(1))
    buffers = [weakref.ref(tensor) for own in simulation.fleet._buffers.values() for tensor in own.values()]
    simulation.fleet.shrink()
    gc.collect()
    assert jobs
    assert buffers
    assert not any(buffer() is not None for buffer in buffers)


def test_one_that_is_left_over_may_have_room_without_the_others() -> None:
    simulation = make_simulation("fedavg", make_task("cnn5"), participation=1.0, group_size=5)
    full, calls = simulation.executor._train, iter(range(100))

    def train(jobs: Sequence[Job]) -> None:
        full(jobs)
        if next(calls) == 1:  # the second wave, of one client
            raise torch.OutOfMemoryError("CUDA out of memory.")

    simulation.executor._train = train  # type: ignore[method-assign]
    simulation.step()
    assert simulation.fleet.limit == 2
    assert simulation.waves.notes == ["5 clients at once did not fit into memory: 2 at a time"]


def test_narrow_batches_say_nothing_of_wide_ones() -> None:
    task, values = make_task("cnn5", (8, 200)), {"executor": "stacked", "batch_size": 64}
    narrow_first, wide_first = (make_simulation("fedavg", task, **values).estimate for _ in range(2))
    now = make_simulation("fedavg", task, **values).now(1)
    narrow = narrow_first._need(0, now).present
    assert narrow < narrow_first._need(1, now).present == wide_first._need(1, now).present


def test_a_client_that_cannot_even_be_looked_at_trains_alone() -> None:
    simulation, expected = (make_simulation("fedavg", TASK, participation=1.0) for _ in range(2))

    def nowhere(rehearsal: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    simulation.executor.step_memory = nowhere  # type: ignore[method-assign]
    simulation.step()
    expected.step()
    assert simulation.fleet.limit == 1
    assert_close(states(simulation), states(expected))


def test_with_a_store_on_disk_and_few_sampled_too(tmp_path: Path) -> None:
    values = {"rounds": 5, "participation": 0.7, "store": "disk"}
    expected = states(finished("fedmoe", TASK, **values))
    simulation = tight(make_simulation("fedmoe", TASK, **values, folder=tmp_path), training=1, after=4)
    simulation.run()
    assert simulation.fleet.limit == 1
    assert_same_bits(states(simulation), expected)


def test_evaluation_takes_fewer_samples_at_once() -> None:
    simulation = tight(make_simulation("fedmoe", TASK), training=100, asking=0)
    with pytest.raises(RoomError, match=r"a client alone does not fit .* \(CUDA out of memory\. Tried .* MiB\.\)"):
        simulation.evaluate()
    assert simulation.fleet.limit == 1
    assert simulation.executor.query_batch == LEAST_BATCH


def test_a_client_that_does_not_fit_alone_is_an_error_and_stays_what_it_was() -> None:
    simulation, untouched = (make_simulation("fedmoe", TASK, participation=1.0) for _ in range(2))
    simulation.step()
    untouched.step()
    tight(simulation, training=0)
    with pytest.raises(RoomError, match="a smaller --batch-size or a smaller model"):
        simulation.step()
    assert_same_bits(states(simulation), states(untouched))


def test_another_error_is_not_taken_for_it() -> None:
    assert not ran_out(RuntimeError("expected scalar type Float but found Double"))
    assert ran_out(RuntimeError("CUDA error: out of memory"))  # as it says when a graph is made
    assert ran_out(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    with pytest.raises(RuntimeError) as found:
        torch.empty(2**60)
    assert ran_out(found.value)


def test_what_a_step_keeps_is_counted_without_what_is_there_anyway() -> None:
    layer, x = nn.Linear(30, 20), torch.zeros(7, 30)
    with kept_for_backward(dict(layer.named_parameters())) as kept:
        layer(x).relu().sum().backward()
    assert kept() == 4 * (7 * 30 + 7 * 20)


def test_all_fit_or_so_many_as_do() -> None:
    small, large = Need(10, 1), Need(30, 2)
    needs = [(small, 30), (large, 10)]  # 600 while they are there, 50 of what they have sent
    assert split(needs, free=1000) == (None, "")
    assert split(needs, free=813) == (None, "")
    limit, note = split(needs, free=500)
    assert limit == 40 * 350 // 600
    assert "40 clients at once" in note
    assert split(needs, free=10)[0] == 1


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_the_group_is_split_before_memory_runs_out(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"executor": executor, "precision": "float64", "device": "cpu", "rounds": 2, "batch_size": 16, "lr": 0.05}
    expected = fedexperts.run("fedmoe", TASK, **values)
    assert not [note for note in expected.record.notes if "at a time" in note]
    monkeypatch.setattr("fedexperts.engine.estimate.free_memory", lambda device: 60_000_000)
    found = fedexperts.run("fedmoe", TASK, **values)
    assert [note for note in found.record.notes if "GB were free" in note]
    assert 1 <= found.simulation.fleet.limit < 6
    assert_close(states(found.simulation), states(expected.simulation))
    asked = fedexperts.run("fedmoe", TASK, **values, group_size=6)
    assert asked.simulation.fleet.limit == 6, "who gives a group size gets it"


def test_a_stack_needs_more_than_a_loop_and_a_wider_batch_more_than_a_narrow_one() -> None:
    def need(**values: Any) -> int:
        simulation = make_simulation("fedavg", TASK, **values)
        return simulation.estimate._need(0, simulation.now(1)).present

    loop, narrow = need(executor="loop"), need(executor="stacked", batch_size=8)
    wide, adam = need(executor="stacked", batch_size=32), need(executor="stacked", batch_size=8, optimizer="adam")
    assert loop < narrow < wide
    assert narrow < adam


def test_this_machine_says_what_is_free() -> None:
    free = free_memory(torch.device("cpu"))
    assert free is None or free > 2**20


@pytest.mark.parametrize(("place", "said"), [("memory", 1), ("disk", 0)])
def test_a_store_that_will_not_fit_into_memory_is_named_at_once(
    place: str, said: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedexperts.engine.estimate.free_memory", lambda device: 12_000_000)
    finished("standalone", TASK, store=place, rounds=2)  # six clients that keep 3 MB each
    assert len(caplog.messages) == said
    assert all("6 clients keep may come to" in line and "--store disk" in line for line in caplog.messages)
