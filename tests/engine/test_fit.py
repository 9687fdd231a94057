"""What a fit keeps, and what it does not."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import make_simulation, make_task
from torch import Tensor

from fedexperts.engine.cohort import Job, Lesson
from fedexperts.engine.fit import Fit, Memory

SIMULATION = make_simulation("fedrep", make_task(), optimizer="adam", lr=0.01)


def two_stages() -> tuple[Job, list[Fit], dict[str, Memory]]:
    """FedRep trains the head, then the body: as fits with one memory."""
    stages = SIMULATION.method.stages(SIMULATION.now(1))
    job = SIMULATION.estimate._rehearsal(0, [*stages, stages[0]])
    memory: dict[str, Memory] = {}
    return job, [fit_of(job, lesson, memory) for lesson in job.lessons], memory


def fit_of(job: Job, lesson: Lesson, memory: dict[str, Memory], times: int = 1, compiled: bool = False) -> Fit:
    tensors = {name: torch.cat([tensor] * times) for name, tensor in job.cohort.tensors.items()}
    received = job.received.roomy(times)
    program, settings = job.cohort.program.stacked, SIMULATION.settings
    return Fit(program, lesson.stage, tensors, received, settings, "float64", compiled, memory)


def step(fit: Fit, job: Job, clients: int = 1) -> Tensor:
    data = SIMULATION.data
    index = job.lessons[0].order[:, 0].expand(clients, -1)
    return fit.step(data.x(index), data.y(index))


def test_gradients_are_given_back() -> None:
    job, (fit, *_), _ = two_stages()
    before = {name: leaf.detach().clone() for name, leaf in fit.leaves.items()}
    step(fit, job)
    assert all(leaf.grad is None for leaf in fit.leaves.values())
    assert any(not torch.equal(leaf, before[name]) for name, leaf in fit.leaves.items())


def test_stages_share_what_an_optimiser_keeps_and_each_begins_with_nothing() -> None:
    job, (head, body, again), memory = two_stages()
    assert set(memory) == {*head.leaves, *body.leaves}
    step(head, job)
    for name, leaf in again.leaves.items():
        kept = again.optimizer.state[leaf]
        assert kept is memory[name]
        assert kept["exp_avg_sq"].any()
    again.forget()
    assert not any(tensor.any() for name in again.leaves for tensor in memory[name].values())


def test_some_of_a_stack_share_the_memory_of_the_whole() -> None:
    job, _, memory = two_stages()
    small = dict(memory)
    whole = fit_of(job, job.lessons[0], memory, times=3)
    assert all(memory[name] is not small[name] for name in whole.leaves), "larger ones get memory of their own"
    first = whole.first(2)
    step(first, job, clients=2)
    for name in whole.leaves:
        kept = memory[name]["exp_avg_sq"]
        assert kept[0].any()
        assert kept[1].equal(kept[0])
        assert not kept[2].any()
        assert memory[name]["step"] == 1


def test_some_of_a_stack_forget_with_the_whole_whatever_size_others_left() -> None:
    """A smaller stack comes between, as when a stage is captured anew for fewer clients."""
    job, _, memory = two_stages()
    whole = fit_of(job, job.lessons[0], memory, times=3)
    fit_of(job, job.lessons[0], memory, times=2)
    first = whole.first(2)
    step(first, job, clients=2)
    assert all(first.optimizer.state[leaf]["exp_avg_sq"].any() for leaf in first.leaves.values())
    whole.forget()
    assert not any(kept.any() for leaf in first.leaves.values() for kept in first.optimizer.state[leaf].values())


@pytest.mark.filterwarnings(
    "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
)  # by torch
def test_every_number_of_clients_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch by itself stops after eight."""
    seen: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    job, *_ = two_stages()
    head = job.lessons[0]
    for clients in range(1, 10):
        losses = step(fit_of(job, head, {}, clients, compiled=True), job, clients)
        torch.testing.assert_close(losses, step(fit_of(job, head, {}, clients), job, clients))
    assert len(seen) == clients
