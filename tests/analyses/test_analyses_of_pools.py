"""A pool of modules and those who mix it: numbers worked out by hand, and real runs."""

import numpy as np
import pytest

import fedexperts
from fedexperts import analyses
from fedexperts.config import Settings
from fedexperts.measure import COLUMNS, Record


def made_up(validation: list[list[float]], test: list[list[float]], rounds: list[int], method: str = "pm-moe"):
    """A run that was looked at in some rounds: rounds × clients."""
    rows = []
    for number, *scores in zip(rounds, validation, test, strict=True):
        for client, (chosen_by, reached) in enumerate(zip(*scores, strict=True)):
            row = dict.fromkeys(COLUMNS, 0) | {"round": number, "client": client, "test_samples": 10 * (client + 1)}
            rows.append(row | {"validation_accuracy": chosen_by, "test_accuracy": reached})
    settings = Settings.check({"method": method, "options": {"base": "fedrod"}, "clients": len(test[0])})
    return Record(settings, "PM-MoE", rows, np.ones((len(test[0]), 2)), ["a", "b"])


VALIDATION = [[0.9, 0.5, 0.5, 0.5], [0.5, 0.9, 0.5, 0.1], [0.5, 0.8, 0.6, 0.2]]
TEST = [[0.8, 0.4, 0.6, 0.5], [0.9, 0.9, 0.9, 0.9], [0.4, 0.7, 0.5, 0.7]]


# --- to use the mixture or not


def test_every_client_chooses_on_its_validation_data():
    found = analyses.mixture(made_up(VALIDATION, TEST, [1, 2, 3]))
    # Without choosing, round 1 is the best on validation data, 0.6; of the others it is round 3, 0.525 against 0.5.
    assert (found.base.round, found.everywhere.round, found.chosen.round) == (1, 3, 3)
    assert found.used.tolist() == [False, True, True, False]
    assert found.base.mean == pytest.approx(0.575)
    assert found.everywhere.mean == pytest.approx(0.575)
    assert found.chosen.clients == (0.8, 0.7, 0.5, 0.5)
    assert found.chosen.weighted == pytest.approx((0.8 * 10 + 0.7 * 20 + 0.5 * 30 + 0.5 * 40) / 100)
    assert found.gains.points.tolist() == [0, 30, -10, 0]
    assert found.gains.worse == 1
    assert found.gains_everywhere.points.tolist() == [-40, 30, -10, 20]


def test_as_good_is_no_reason_to_use_the_mixture():
    found = analyses.mixture(made_up([[0.5, 0.5]] * 2, [[0.1, 0.2], [0.9, 0.9]], [1, 2]))
    assert not found.used.any()
    assert found.chosen.clients == found.base.clients


def test_of_equally_good_rounds_it_is_the_last():
    assert analyses.mixture(made_up([[0.1], [0.5], [0.5]], [[0.1], [0.2], [0.3]], [1, 2, 3])).everywhere.round == 3


def test_a_run_without_a_beginning_or_another_method_has_nothing_to_choose():
    assert analyses.mixture(made_up(VALIDATION, TEST, [2, 3, 4])) is None
    assert analyses.mixture(made_up(VALIDATION[:1], TEST[:1], [1])) is None
    assert analyses.mixture(made_up(VALIDATION, TEST, [1, 2, 3], method="fedmoe")) is None
    assert analyses.mixture(made_up(VALIDATION, TEST, [1, 2, 3], method="somebody-elses")) is None


def test_how_much_of_their_label_mix_clients_share():
    counts = np.array([[10, 0, 0], [5, 5, 0], [0, 1, 3]])
    # Between 0 and 1: 0.5, between 1 and 2: 0.25, between 0 and 2 nothing.
    np.testing.assert_allclose(analyses.overlap(counts), [0.25, 0.375, 0.125])
    np.testing.assert_allclose(analyses.overlap(counts[:1]), [0])


# --- a real run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """FedPer's heads, looked at seldom; client 1 keeps its own."""
    task = fedexperts.Task.of(data="digits", clients=4, samples_per_client=60, partition="dirichlet", alpha=1.0)
    quick = {"rounds": 3, "gate_epochs": 3, "batch_size": 32, "device": "cpu", "evaluate_every": 5}
    folder = tmp_path_factory.mktemp("pools") / "run"
    return fedexperts.run("pm-moe", task, out=folder, keep_out=(1,), **quick)


def test_where_it_began_is_always_looked_at(run):
    assert run.record.curve.rounds.tolist() == [1, 4]
    assert run.before.curve.rounds.tolist() == [3]  # a run that begins afresh is not
    assert analyses.mixture(run.record).base.clients == run.before.figures["last"].clients


def test_predictions_are_the_mixtures(run):
    for client, own in enumerate(run.simulation.task.clients):
        dataset = run.simulation.task.dataset
        right = run.predict(client, dataset.inputs[own.test]).argmax(1) == dataset.labels[own.test]
        assert right.mean() == pytest.approx(run.figures["last"].clients[client])
