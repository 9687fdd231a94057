"""Who has which samples: what each kind of partition promises, and what it refuses."""

from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedexperts.config import TaskSettings
from fedexperts.data import MIN_SAMPLES, label_counts, partition
from fedexperts.errors import DataError

KINDS = ("homogeneous", "pathological", "dirichlet", "dirichlet-shared")


@st.composite
def tasks(draw, kinds=KINDS, fixed=False):
    """Labels and settings that can be fulfilled, with classes of different sizes."""
    clients, classes = draw(st.integers(1, 8)), draw(st.integers(2, 6))
    sizes = draw(st.lists(st.integers(30 * clients, 40 * clients), min_size=classes, max_size=classes))
    labels = np.random.default_rng(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(classes), sizes))
    return labels, TaskSettings(
        clients=clients,
        partition=draw(st.sampled_from(kinds)),
        classes_per_client=draw(st.integers(1, classes)),
        balanced=draw(st.booleans()),
        alpha=draw(st.floats(1, 20)),
        shared_ratio=draw(st.floats(0, 1)),
        # 30 per client cannot exhaust a class even if all want the same one, so the mix is the kind's own
        samples_per_client=draw(st.integers(10, 30)) if fixed else None,
        seed=draw(st.integers(0, 2**32)),
    )


def count(labels, task):
    classes = int(labels.max()) + 1
    parts = partition(labels, classes, task)
    return parts, label_counts(parts, labels, classes)


@settings(deadline=None)
@given(tasks())
def test_parts_are_sorted_disjoint_large_enough_and_reproducible(example):
    labels, task = example
    parts, _ = count(labels, task)
    everything = np.concatenate(parts)
    assert len(parts) == task.clients
    assert len(np.unique(everything)) == len(everything)
    for part, again in zip(parts, partition(labels, int(labels.max()) + 1, task), strict=True):
        assert len(part) >= MIN_SAMPLES
        assert np.all(np.diff(part) > 0)
        assert np.array_equal(part, again)
    if task.partition != "pathological" or task.clients * task.classes_per_client >= labels.max() + 1:
        assert len(everything) == len(labels)


@settings(deadline=None)
@given(tasks(kinds=("homogeneous",)))
def test_homogeneous_parts_have_equal_sizes(example):
    _, counts = count(*example)
    assert np.ptp(counts.sum(1)) <= 1


@settings(deadline=None)
@given(tasks(kinds=("pathological",)))
def test_pathological_clients_have_their_number_of_classes_each_equally_often(example):
    labels, task = example
    _, counts = count(labels, task)
    assert np.all((counts > 0).sum(1) == task.classes_per_client)
    holders = (counts > 0).sum(0)
    assert np.ptp(holders) <= 1
    for label in np.flatnonzero(holders):
        shares = counts[counts[:, label] > 0, label]
        assert shares.sum() == np.sum(labels == label)
        if task.balanced:
            assert np.ptp(shares) <= 1


@settings(deadline=None)
@given(tasks(kinds=("dirichlet-shared",)))
def test_the_shared_ratio_of_each_class_reaches_everyone(example):
    labels, task = example
    _, counts = count(labels, task)
    assert np.all(counts >= np.floor(task.shared_ratio * np.bincount(labels) / task.clients - 1e-6))


@settings(deadline=None)
@given(tasks(fixed=True))
def test_a_fixed_number_of_samples_is_exact_and_keeps_the_kind(example):
    labels, task = example
    parts, counts = count(labels, task)
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    assert np.all(counts.sum(1) == task.samples_per_client)
    if task.partition == "pathological":
        assert np.all((counts > 0).sum(1) == task.classes_per_client)
        if task.balanced:
            assert all(np.ptp(row[row > 0]) <= 1 for row in counts)
    if task.partition == "dirichlet-shared":
        classes = counts.shape[1]
        assert np.all(counts >= np.floor(task.shared_ratio * task.samples_per_client / classes - 1e-6))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(("homogeneous", "dirichlet", "dirichlet-shared")))
def test_a_fixed_number_that_uses_up_the_set_falls_back_on_what_is_left(seed, kind):
    labels = np.repeat(np.arange(4), (20, 60, 100, 220))
    task = TaskSettings(clients=10, partition=kind, samples_per_client=40, alpha=0.1, seed=seed)
    parts, counts = count(labels, task)
    assert np.all(counts.sum(1) == 40)
    assert sorted(np.concatenate(parts)) == list(range(400))


def test_a_pathological_client_falls_back_only_on_its_own_classes():
    labels = np.repeat(np.arange(4), (30, 100, 100, 100))
    task = TaskSettings(clients=4, partition="pathological", classes_per_client=2, samples_per_client=60)
    _, counts = count(labels, task)
    assert np.all(counts.sum(1) == 60)
    assert np.all((counts > 0).sum(1) == 2)
    assert counts[:, 0].sum() == 30


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_partition(kind):
    labels = np.repeat(np.arange(5), 100)
    first, second = (partition(labels, 5, TaskSettings(clients=5, partition=kind, alpha=5, seed=s)) for s in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("fixed", [None, 200])
def test_a_small_alpha_concentrates_and_a_large_one_spreads(fixed):
    labels = np.repeat(np.arange(10), 1000)
    top = {}
    for alpha in (0.1, 1000):
        task = TaskSettings(clients=20, partition="dirichlet", alpha=alpha, samples_per_client=fixed)
        _, counts = count(labels, task)
        top[alpha] = (counts.max(1) / counts.sum(1)).mean()
    assert top[0.1] > 0.5
    assert top[1000] < 0.15


def test_an_unbalanced_pathological_split_is_uneven_within_a_class():
    labels = np.repeat(np.arange(4), 400)
    _, counts = count(labels, TaskSettings(clients=8, classes_per_client=2, balanced=False, alpha=0.5))
    assert np.ptp(counts[counts > 0]) > 50


def test_uneven_draws_are_repeated_until_everyone_has_enough(monkeypatch):
    labels = np.repeat(np.arange(3), 150)
    task = TaskSettings(clients=15, partition="dirichlet", alpha=0.5, seed=3)
    _, counts = count(labels, task)
    assert counts.sum(1).min() >= MIN_SAMPLES
    monkeypatch.setattr(import_module("fedexperts.data.partition"), "ATTEMPTS", 1)
    with pytest.raises(DataError, match="best of 1 draws"):
        count(labels, task)


def test_classes_without_samples_go_to_nobody():
    labels = np.repeat([0, 2, 5], 60)
    for kind in KINDS:
        parts = partition(labels, 7, TaskSettings(clients=3, partition=kind, alpha=5))
        assert sum(map(len, parts)) == 180
    with pytest.raises(DataError, match="classes_per_client is 4, but there are samples of only 3 classes"):
        partition(labels, 7, TaskSettings(clients=3, classes_per_client=4))


def test_with_fewer_places_than_classes_some_classes_are_left_out():
    parts, counts = count(np.repeat(np.arange(6), 50), TaskSettings(clients=2, classes_per_client=2))
    assert sorted(counts.sum(0)) == [0, 0, 50, 50, 50, 50]
    assert [len(part) for part in parts] == [100, 100]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clients": 101}, r"101 clients with at least 10 samples each need 1,010, the set has 1,000"),
        ({"samples_per_client": 101}, r"10 clients with 101 samples each need 1,010, the set has 1,000"),
        ({"samples_per_client": 5}, "samples_per_client is 5; a client needs at least 10"),
        ({"classes_per_client": 11}, "classes_per_client is 11, .* only 10 classes"),
        (
            {"partition": "dirichlet", "alpha": 1e-4, "clients": 50},
            r"client \d+ of 50 would have \d samples .*alpha=0.0001.* needs 10; fewer clients or a larger",
        ),
        (
            {"balanced": False, "alpha": 1e-4, "clients": 50},
            r"client \d+ of 50 would have 2 samples .* more classes_per_client would help",
        ),
        (
            {"clients": 2, "classes_per_client": 1, "samples_per_client": 200},
            r"client 0 of 2 would have 100 samples, it needs 200; .* a smaller samples_per_client",
        ),
    ],
)
def test_impossible_requests_say_the_numbers(values, message):
    labels = np.repeat(np.arange(10), 100)
    with pytest.raises(DataError, match=message):
        partition(labels, 10, TaskSettings(**values))


def test_one_sample_of_every_class_for_everyone_is_just_possible():
    labels = np.repeat(np.arange(10), 100)
    _, counts = count(labels, TaskSettings(clients=100, classes_per_client=10, samples_per_client=10))
    assert np.all(counts == 1)


def test_a_class_with_fewer_samples_than_clients_is_refused():
    labels = np.repeat([0, 1], (3, 500))
    with pytest.raises(DataError, match="class 0 has 3 samples for its 5 clients"):
        partition(labels, 2, TaskSettings(clients=5, classes_per_client=2))


def test_more_classes_than_samples_per_client_is_refused():
    labels = np.repeat(np.arange(20), 20)
    with pytest.raises(DataError, match="10 samples per client cannot cover 12 classes"):
        partition(labels, 20, TaskSettings(clients=4, classes_per_client=12, samples_per_client=10))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 1, 5] * 20), "labels from 0 to 5; of 3 classes they run from 0 to 2"),
        (np.array([0.0, 1.0] * 20), "labels of type float64"),
        (np.array([], np.int64), "holds no samples"),
    ],
)
def test_labels_that_are_none_are_refused(labels, message):
    with pytest.raises(DataError, match=message):
        partition(labels, 3, TaskSettings(clients=1))
