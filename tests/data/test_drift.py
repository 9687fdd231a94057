"""Data whose distribution moves."""

import numpy as np
import pytest

from fedexperts.data import ClientData, between, position
from fedexperts.errors import DataError
from fedexperts.task import Task

DRIFTING = {"data": "digits", "clients": 5, "partition": "pathological", "classes_per_client": 2, "phases": 3}


def parts(client: ClientData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return client.train, client.validation, client.test


def test_sudden_phases_last_equally_long() -> None:
    found = [position("sudden", t, 12, 3) for t in range(1, 13)]
    assert found == [(0, 0.0)] * 4 + [(1, 0.0)] * 4 + [(2, 0.0)] * 4


def test_gradual_drift_goes_evenly_from_the_first_phase_to_the_last() -> None:
    found = [sum(position("gradual", t, 9, 3)) for t in range(1, 10)]
    assert found == pytest.approx(np.linspace(0, 2, 9))
    assert position("gradual", 9, 9, 3) == (1, 1.0)
    assert position("gradual", 1, 1, 3) == (0, 0.0)


def test_between_two_phases_new_samples_come_and_as_many_old_ones_go() -> None:
    old = ClientData(np.arange(10), np.arange(20, 24), np.arange(30, 35))
    new = ClientData(np.arange(110, 120), np.arange(120, 124), np.arange(130, 135))
    mixed = between(old, new, 0.5)
    assert [len(part) for part in parts(mixed)] == [10, 4, 5]
    assert (mixed.train >= 100).sum() == 5
    assert (mixed.validation >= 100).sum() == 2
    assert set(mixed.train) <= {*old.train, *new.train}


@pytest.mark.parametrize("drift", ["sudden", "gradual"])
def test_a_client_keeps_its_size_and_its_class_mix_moves(drift: str) -> None:
    task = Task.of(drift=drift, **DRIFTING)
    sizes = [[len(part) for part in parts(client)] for client in task.clients]
    for now in range(1, 11):
        assert [[len(part) for part in parts(client)] for client in task.at(now, 10)] == sizes
    first, last = ([set(task.dataset.labels[client.train].tolist()) for client in task.at(now, 10)] for now in (1, 10))
    assert all(len(classes) == 2 for classes in first + last)
    assert first != last


def test_no_sample_is_ever_seen_in_training_and_in_testing_or_by_two_clients() -> None:
    task = Task.of(drift="gradual", **DRIFTING)
    owners: dict[int, set[tuple[int, int]]] = {}
    for now in range(1, 11):
        for client, data in enumerate(task.at(now, 10)):
            for kind, part in enumerate(parts(data)):
                for sample in part.tolist():
                    owners.setdefault(sample, set()).add((client, kind))
    assert all(len(places) == 1 for places in owners.values())


def test_without_drift_nothing_moves() -> None:
    task = Task.of(drift="none", **DRIFTING)
    assert task.at(1, 10) is task.at(10, 10) is task.clients


def test_too_many_phases_are_named() -> None:
    with pytest.raises(DataError, match=r"100 clients × 4 phases of drift are a partition for 400 clients, and"):
        Task.of(data="digits", clients=100, drift="sudden")
