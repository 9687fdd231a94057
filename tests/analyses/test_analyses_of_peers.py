"""Experts and who shares them: numbers worked out by hand, and a real run."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import finished, make_task

from fedexperts import analyses
from fedexperts.analyses import MATRIX, Matrix, SampleTable
from fedexperts.errors import MethodError, SavedStateError
from fedexperts.measure import FETCHES

# Client 0 has experts 0 and 1, client 1 has one, client 2 is not known to the server.
MIXED = Matrix(
    experts=np.array([[0, 0], [0, 0], [0, 1], [0, 1], [1, 0], [1, 0]]),
    sources=np.array([[0, 0], [1, 0], [0, 1], [0, 0], [1, 0], [0, 1]]),
    weights=np.array([0.6, 0.4, 0.7, 0.3, 0.75, 0.25]),
)


# --- the matrix


def test_matrix_by_expert_and_by_client():
    names, matrix = MIXED.by_expert()
    assert names.tolist() == [[0, 0], [0, 1], [1, 0]]
    np.testing.assert_allclose(matrix, [[0.6, 0, 0.4], [0.3, 0.7, 0], [0, 0.25, 0.75]])
    by_client = MIXED.by_client(3)
    np.testing.assert_allclose(by_client[:2], [[0.8, 0.2, 0], [0.25, 0.75, 0]])
    assert np.isnan(by_client[2]).all()


def test_matrix_is_read_as_it_was_written(tmp_path):
    assert Matrix.load(None) is None
    assert Matrix.load(tmp_path) is None
    MIXED.save(tmp_path / MATRIX)
    assert (
        (tmp_path / MATRIX).read_text().startswith("client,expert,peer,peer_expert,weight\n0,0,0,0,0.6\n0,0,1,0,0.4\n")
    )
    found = Matrix.load(tmp_path)
    for field in ("experts", "sources", "weights"):
        np.testing.assert_array_equal(getattr(found, field), getattr(MIXED, field))
    (tmp_path / MATRIX).write_text("client,expert\n0,0\n")
    with pytest.raises(SavedStateError, match="make it again: fedexperts analyse matrix"):
        Matrix.load(tmp_path)


def test_matrix_of_a_run_is_what_its_server_knows():
    options = {"experts": (2, 3), "asked": 2}
    simulation = finished("fedmoe-da", make_task("cnn-da"), options=options, rounds=2, participation=1.0)
    found = analyses.aggregation_matrix(simulation)
    names, matrix = found.by_expert()
    assert len(names) == 15  # six clients with two and three experts in turn
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    assert ((matrix > 0).sum(axis=1) == 3).all()  # itself and two others
    place = names.tolist().index([1, 2])
    for (peer, expert), weight in zip(simulation.server["places.1"][2], simulation.server["weights.1"][2], strict=True):
        assert matrix[place, names.tolist().index([peer, expert])] == pytest.approx(float(weight))
    np.testing.assert_allclose(found.by_client(6).sum(axis=1), 1)


def test_few_experts_leave_places_empty():
    options = {"experts": 1, "asked": 9}
    simulation = finished("fedmoe-da", make_task("cnn-da"), options=options, rounds=1, participation=0.5)
    found = analyses.aggregation_matrix(simulation)
    assert len(found.weights) == 9  # three clients were sampled: each is mixed of three, nobody of nobody
    assert torch.count_nonzero(simulation.server[f"weights.{found.experts[0, 0]}"]) == 3


def test_a_method_without_a_matrix_is_named():
    with pytest.raises(MethodError, match="FedAvg \\(fedavg\\) makes no aggregation matrix"):
        analyses.aggregation_matrix(finished("fedavg", make_task(), rounds=1))


# --- those with like data


def test_likeness_of_dealings():
    counts = np.array([[5, 1], [4, 4], [0, 3]])
    dominant = analyses.dominant_classes(counts)
    assert dominant.tolist() == [0, 0, 1]
    dealings = np.array([[9, 3, 1], [2, 9, 2], [1, 1, 9]])  # with others: 4, 4 and 2
    like = analyses.likeness(dealings, dominant)
    # Between 0 and 1: 3 + 2 of 10. By chance each of them spends half on the other: 2 + 2 of 10.
    assert like == pytest.approx((0.5, 0.4))
    assert analyses.likeness(np.eye(3), dominant) is None


# --- who fetches from whom


@dataclass(frozen=True)
class Kept:
    """What is needed of a record."""

    folder: Path | None
    counts: np.ndarray


def test_fetches_are_counted_by_pairs(tmp_path):
    record = Kept(tmp_path, np.ones((4, 2)))
    assert analyses.fetched(record) is None
    assert analyses.fetched(replace(record, folder=None)) is None
    rows = ["2,0,1,experts.0", "2,0,1,experts.1", "3,1,0,experts.0", "3,3,1,experts.2", "7,2,3,experts.0"]
    (tmp_path / FETCHES).write_text("\r\n".join(["round,client,peer,what", *rows, ""]))
    found = analyses.fetched(record)
    assert (found.first, found.last) == (2, 7)
    assert found.counts.tolist() == [[0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]
    assert found.pairs() == [(0, 1, 3), (1, 3, 1), (2, 3, 1)]


@pytest.mark.parametrize("rows", ["", "2,0,4,e\n", "2,-1,0,e\n", "2,0\n", "2,x,1,e\n"])
def test_a_broken_file_is_named(tmp_path, rows):
    (tmp_path / FETCHES).write_text("round,client,peer,what\n" + rows)
    with pytest.raises(SavedStateError, match=r"fetches.csv is cut off or changed"):
        analyses.fetched(Kept(tmp_path, np.ones((4, 2))))
    (tmp_path / FETCHES).write_text("")
    with pytest.raises(SavedStateError, match=r"fetches.csv is cut off or changed"):
        analyses.fetched(Kept(tmp_path, np.ones((4, 2))))


# --- which expert for which class


def test_experts_chosen_by_class():
    weights = np.array([[0.6, 0.4], [0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.45, 0.55]])
    table = SampleTable(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 0, 0, 2]), np.arange(5), ("a", "b"), weights)
    times = analyses.times_chosen(table, 2, 3)
    assert times.tolist() == [[[1, 0, 0], [2, 0, 0]], [[1, 0, 0], [0, 0, 1]]]
    together = analyses.shares_chosen(times.sum(axis=0))
    np.testing.assert_allclose(together, [[0.5, np.nan, 0], [0.5, np.nan, 1]])
    np.testing.assert_allclose(analyses.shares_chosen(times)[0], [[1 / 3, np.nan, np.nan], [2 / 3, np.nan, np.nan]])
    assert analyses.agreement(times.sum(axis=0)) == pytest.approx(3 / 5)
    assert analyses.agreement(times) == pytest.approx(4 / 5)  # 2 of 3, 1 of 1, 1 of 1
