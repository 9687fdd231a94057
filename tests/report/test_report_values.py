"""What is saved with a figure are its numbers, under the names that stand on its axes."""

import csv
import io

import numpy as np
import pytest

from fedexperts.report import chapters
from fedexperts.report.comparison_figures import gain_map, spent_bars, standing
from fedexperts.report.figures import accuracy_curves, client_accuracy, label_picture
from fedexperts.report.runs import line_up
from fedexperts.report.values import figure_csv


def rows(figure):
    return list(csv.DictReader(io.StringIO(figure_csv(figure))))


def test_curves_with_their_spread(three):
    found = rows(accuracy_curves(three))
    assert list(found[0]) == ["series", "round", "mean test accuracy, %", "std over clients, points"]
    own = [row for row in found if row["series"] == "FedMoE"]
    test = three[2].curve.test
    assert [int(row["round"]) for row in own] == list(range(1, 41))
    np.testing.assert_allclose([float(row["mean test accuracy, %"]) for row in own], 100 * test.mean(1), atol=1e-6)
    np.testing.assert_allclose([float(row["std over clients, points"]) for row in own], 100 * test.std(1), atol=1e-6)


def test_cells_of_a_table_of_colours():
    found = rows(label_picture(np.array([[5, 0], [0, 9]]), ["cat", "a <b> & c"], client_names=["north", "south"]))
    assert found[-1] == {"client": "south", "class": "a <b> & c", "samples": "9"}
    assert len(found) == 4


def test_many_clients_in_order_keep_their_numbers(make_record):
    record = make_record("fedmoe", clients=100, rounds=2)
    found = {int(row["client"]): float(row["test accuracy, %"]) for row in rows(client_accuracy([record]))}
    accuracy = np.array(record.figures["selected"].clients)
    np.testing.assert_allclose([found[k] for k in range(100)], 100 * accuracy, atol=1e-6)


def test_at_a_glance(three):
    found = {(row["name"], row["series"]): float(row["test accuracy, %"]) for row in rows(standing(line_up(three)))}
    for record in three:
        figures = record.figures
        assert found[record.title, "last"] == pytest.approx(100 * figures["last"].mean, abs=1e-6)
        assert found[record.title, "selected"] == pytest.approx(100 * figures["selected"].mean, abs=1e-6)
        assert found[record.title, "peak"] == pytest.approx(100 * figures["peak"].mean, abs=1e-6)
        worst = found[record.title, "worst 10 % of clients"]
        assert worst == pytest.approx(100 * figures["selected"].worst_tenth, abs=1e-6)
    assert len(found) == 12


def test_every_gain(three):
    runs = line_up(three)
    found = {(row["name"], row["client"]): float(row["points"]) for row in rows(gain_map(runs, list("abcdefghij")))}
    assert len(found) == 20
    for run in runs:
        for name, gain in zip("abcdefghij", run.gains, strict=False):
            assert found[run.name, name] == pytest.approx(gain, abs=1e-6)


def test_all_that_was_spent(make_record):
    record = make_record("fedavg", rounds=4, peer_bytes=100_000)
    found = rows(spent_bars(line_up([record])))
    sent = {row["series"]: float(row["MB sent"]) for row in found if row["MB sent"]}
    assert sent == {"to the server": 16, "from the server": 32, "between clients": 4}
    assert [float(row["training GFLOP"]) for row in found if row["training GFLOP"]] == [120]
    assert [float(row["seconds"]) for row in found if row["seconds"]] == [12.5]


def test_clients_of_several_splits_stand_in_one_figure_if_they_are_called_the_same(make_record):
    records = [make_record(m, seed=s, rounds=2) for m in ("fedavg", "standalone") for s in (1, 2)]
    headings = [section.heading for section in chapters.clients(line_up(records))]
    assert headings == ["Every client against Standalone", "Client by client"]
