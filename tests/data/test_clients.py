"""One client's split into train, validation and test."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedexperts.config import TaskSettings
from fedexperts.data import label_counts, split
from fedexperts.errors import DataError


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) >= 10),
    test=st.floats(0.05, 0.6),
    validation=st.floats(0.05, 0.5),
    client=st.integers(0, 1000),
)
def test_parts_are_disjoint_exact_in_size_and_have_the_clients_mix(sizes, test, validation, client):
    labels = np.random.default_rng(client).permutation(np.repeat(np.arange(len(sizes)), sizes))
    owned = np.arange(len(labels))
    task = TaskSettings(test_fraction=test, validation_fraction=validation)
    data = split(owned, labels, task, client)
    parts = [data.train, data.validation, data.test]
    assert sorted(np.concatenate(parts)) == owned.tolist()

    n = len(owned)
    assert len(data.test) == max(1, round(n * test))
    assert len(data.validation) == max(1, round((n - len(data.test)) * validation))
    trained, validated, tested = label_counts(parts, labels, len(sizes))
    have = np.array(sizes)
    assert np.all(np.abs(tested - have * len(data.test) / n) < 1 + 1e-6)
    rest = n - len(data.test)
    assert np.all(np.abs(validated - (have - tested) * len(data.validation) / rest) < 1 + 1e-6)
    assert np.all(trained == have - tested - validated)


def test_the_split_belongs_to_the_seed_and_the_client_alone():
    labels = np.tile(np.arange(4), 50)
    owned = np.arange(0, 200, 2)
    first = split(owned, labels, TaskSettings(clients=3), 7)
    same = split(owned, labels, TaskSettings(clients=50, partition="dirichlet"), 7)
    assert np.array_equal(first.test, same.test)
    assert np.array_equal(first.train, same.train)
    assert not np.array_equal(first.test, split(owned, labels, TaskSettings(), 8).test)
    assert not np.array_equal(first.test, split(owned, labels, TaskSettings(seed=1), 7).test)
    assert set(first.test) < set(owned)


def test_the_smallest_client_that_can_be_split():
    labels = np.zeros(4, np.int64)
    data = split(np.arange(4), labels, TaskSettings(), 0)
    assert [len(data.train), len(data.validation), len(data.test)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("samples", "values", "message"),
    [
        (1, {}, "client 5 has 1 samples, 1 for testing and 1 for validation: 0 are left"),
        (3, {}, "client 5 has 3 samples, .*: 1 are left to train on, 2 are needed"),
        (10, {"test_fraction": 0.85}, "test_fraction=0.85 or validation_fraction=0.1"),
    ],
)
def test_a_client_that_cannot_be_split_is_named(samples, values, message):
    with pytest.raises(DataError, match=message):
        split(np.arange(samples), np.zeros(samples, np.int64), TaskSettings(**values), 5)


def test_label_counts_are_clients_by_classes():
    labels = np.array([0, 2, 2, 1, 0])
    parts = [np.array([0, 1, 2]), np.array([], np.int64), np.array([3, 4])]
    assert label_counts(parts, labels, 4).tolist() == [[1, 0, 2, 0], [0, 0, 0, 0], [1, 1, 0, 0]]
    assert label_counts([], labels, 4).shape == (0, 4)


def test_classes_with_a_single_sample_are_in_one_part_only():
    labels = np.arange(10)
    for client in range(30):
        data = split(np.arange(10), labels, TaskSettings(), client)
        assert [len(data.train), len(data.validation), len(data.test)] == [7, 1, 2]
        assert len({*data.train, *data.validation, *data.test}) == 10
