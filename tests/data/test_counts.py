"""Whole numbers in proportion, dealing, and Dirichlet draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedexperts.data.counts import apportion, deal, dirichlet

weights = st.lists(st.floats(0, 100), min_size=1, max_size=8).filter(lambda row: sum(row) > 1e-3)


@given(total=st.integers(0, 500), row=weights, seed=st.integers(0, 99))
def test_apportion_sums_exactly_and_stays_within_one_of_the_exact_share(total, row, seed):
    counts = apportion(np.array([total]), np.array([row]), np.random.default_rng(seed))[0]
    exact = total * np.array(row) / np.sum(row)
    assert counts.sum() == total
    assert np.all(np.abs(counts - exact) < 1 + 1e-6)


def test_apportion_gives_the_rest_to_the_largest_remainders():
    counts = apportion(np.array([10, 3]), np.array([[16, 57, 27], [1, 1, 1]]), np.random.default_rng(0))
    assert counts.tolist() == [[1, 6, 3], [1, 1, 1]]  # 1.6, 5.7, 2.7: the first has the smallest remainder


def test_apportion_breaks_ties_at_random():
    winners = {int(apportion(np.array([1]), np.ones((1, 3)), np.random.default_rng(i)).argmax()) for i in range(40)}
    assert winners == {0, 1, 2}


def test_deal_gives_each_owner_its_counts_and_leaves_the_rest():
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 1, 2])
    counts = np.array([[2, 1, 0], [1, 3, 0]])
    first, second = deal(labels, counts, np.random.default_rng(0))
    assert np.bincount(labels[first], minlength=3).tolist() == [2, 1, 0]
    assert np.bincount(labels[second], minlength=3).tolist() == [1, 3, 0]
    assert not set(first) & set(second)
    assert first.tolist() == sorted(first)
    assert second.tolist() == sorted(second)


def test_dirichlet_has_the_right_mean_and_variance():
    draws = dirichlet(np.ones((50_000, 4), bool), 0.3, np.random.default_rng(0))
    assert draws.mean(0) == pytest.approx(np.full(4, 0.25), abs=0.01)
    assert draws.var(0) == pytest.approx(np.full(4, 0.25 * 0.75 / (4 * 0.3 + 1)), abs=0.005)


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 0.1, 1.0, 1e300, float("inf")])
def test_dirichlet_is_a_distribution_over_the_mask_for_any_alpha(alpha):
    mask = np.array([[True, True, True], [True, False, True]])
    draws = dirichlet(mask, alpha, np.random.default_rng(0))
    assert draws.sum(1) == pytest.approx([1, 1])
    assert draws[1, 1] == 0
    if alpha > 1e6:
        assert draws[1] == pytest.approx([0.5, 0, 0.5], abs=1e-3)
