"""Which samples a client sees when."""

import math

import numpy as np
import pytest
import torch
from support import make_task

from fedexperts.data import ClientData
from fedexperts.engine.batches import BatchPlan, Portion, batch_order, width
from fedexperts.engine.cohort import Lesson
from fedexperts.methods import Stage


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize(("samples", "batch"), [(48, 16), (45, 16), (16, 16), (17, 16), (5, 16), (2, 2)])
@pytest.mark.parametrize("epochs", [1, 3])
def test_every_epoch_sees_every_sample_in_full_batches(samples: int, batch: int, epochs: int) -> None:
    train = np.arange(100, 100 + samples)
    order = batch_order(train, width(samples, batch), epochs, rng())
    assert order.shape == (epochs * math.ceil(samples / batch), width(samples, batch))
    for epoch in order.reshape(epochs, -1):
        assert set(epoch) == set(train)
        repeated = np.bincount(epoch - 100)
        assert (repeated == 1).sum() >= samples - (len(epoch) - samples)
        assert repeated.max() <= 2


def test_epochs_are_different_permutations() -> None:
    order = batch_order(np.arange(32), 8, 2, rng()).reshape(2, -1)
    assert not np.array_equal(order[0], order[1])


def test_a_plan_made_ahead_is_the_same_plan() -> None:
    clients = make_task().clients
    ahead, at_once = (BatchPlan(lambda now: clients, 16, seed=5) for _ in range(2))
    first = ahead.take(2, 1, 0, Portion(1))
    ahead.prepare([1, 2], 2)
    assert np.array_equal(ahead.take(2, 2, 0, Portion(1)), at_once.take(2, 2, 0, Portion(1)))
    assert not np.array_equal(first, at_once.take(2, 2, 0, Portion(1)))


def test_shares_of_the_data_are_apart_and_stay_the_same() -> None:
    clients = make_task().clients
    plan = BatchPlan(lambda now: clients, 16, seed=5)
    for client, data in enumerate(clients):
        portions = [Portion(1, share) for share in ((0, 0.75), (0.75, 1))]
        shares = [[set(plan.take(client, now, 0, portion).flat) for now in (1, 2)] for portion in portions]
        (first, again), (rest, also) = shares
        assert first == again
        assert rest == also
        assert not first & rest
        assert first | rest == set(data.train)
        _, size = plan.take(client, 1, 0, portions[1]).shape
        assert size == min(16, len(data.train)), "full batches all the same"


def test_clients_still_training_are_a_prefix() -> None:
    import torch

    lesson = Lesson(Stage((), None, 1), torch.zeros(3, 4, 2), steps=(4, 2, 1))  # type: ignore[arg-type]
    assert [lesson.active(step) for step in range(4)] == [3, 2, 1, 1]


def test_a_stage_may_end_after_some_samples() -> None:
    train = np.arange(100)
    for samples, steps in ((64, 4), (65, 5), (1, 1), (1000, 7)):
        order = batch_order(train, 16, 2, np.random.default_rng(0), samples)
        assert order.shape == (2 * steps, 16)
        assert len(set(order[:steps].flat)) == min(16 * steps, 100), "none twice in an epoch"
    assert not np.array_equal(order[:7], order[7:])


@pytest.mark.parametrize("share", [(0, 0.3), (0.4, 1), (0.25, 0.65), (0.37, 0.67), (0.5, 0.51)])
def test_who_has_more_samples_never_makes_fewer_steps(share: tuple[float, float]) -> None:
    """Or a stack, in which clients with more samples come first, would let the wrong ones go on."""
    plan = BatchPlan(lambda now: [ClientData(np.arange(n), *2 * [np.arange(0)]) for n in range(1, 400)], 4, seed=5)
    steps = [len(plan.take(client, 1, 0, Portion(1, share))) for client in range(399)]
    assert steps[3:] == sorted(steps[3:])  # as soon as batches are full
    for client in (9, 99, 399 - 1):
        seen = len(np.unique(plan.take(client, 1, 0, Portion(1, share))))
        assert abs(seen - (share[1] - share[0]) * (client + 1)) <= 1


def test_steps_that_rise_along_a_stack_are_an_error() -> None:
    stage = Stage(("head",), lambda model, batch, received: batch.x.sum(), 1)
    with pytest.raises(ValueError, match="falling numbers of steps"):
        Lesson(stage, torch.zeros(2, 3, 4, dtype=torch.int64), (2, 3))
