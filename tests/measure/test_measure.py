from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support import finished, make_task

from fedexperts.measure import COLUMNS, History, Row, curve, read_history, totals

ACCURACY = {1: (0.2, 0.9), 2: (0.6, 0.7), 3: (0.6, 0.5)}
"""Round → mean of (validation, test): best on validation in 2 and 3, on test in 1."""


def rows(clients: int = 20) -> list[Row]:
    made = []
    for now, (validation, test) in ACCURACY.items():
        for client in range(clients):
            spread = 0.01 * (client - (clients - 1) / 2)
            row: Row = dict.fromkeys(COLUMNS, 0)
            row |= {"round": now, "client": client, "validation_accuracy": validation, "validation_samples": 5}
            row |= {"test_accuracy": test + spread, "test_samples": 10 + client, "up_bytes": 3, "flops": 2}
            made.append(row)
    return made


def test_three_figures() -> None:
    figures = curve(rows()).figures()
    assert {kind: figure.round for kind, figure in figures.items()} == {"last": 3, "selected": 3, "peak": 1}
    assert figures["peak"].mean == pytest.approx(0.9)
    last = figures["last"]
    accuracy = 0.5 + 0.01 * (np.arange(20) - 9.5)
    assert last.clients == pytest.approx(tuple(accuracy))
    assert last.std == pytest.approx(accuracy.std())
    assert last.worst_tenth == pytest.approx(accuracy[:2].mean())
    assert last.weighted == pytest.approx(np.average(accuracy, weights=np.arange(10, 30)))


def test_a_client_that_is_missing_counts_as_it_last_was() -> None:
    made = [row for row in rows() if (row["round"], row["client"]) not in {(1, 3), (3, 5)}]
    found = curve(made)
    assert found.rounds.tolist() == [2, 3]  # in the first round client 3 had not been seen yet
    last = {row["client"]: row["test_accuracy"] for row in rows() if row["round"] == (2 if row["client"] == 5 else 3)}
    assert found.figures()["last"].clients == pytest.approx([last[client] for client in range(20)])


def test_larger_clients_may_count_more() -> None:
    scores = {1: [(0.9, 0.8), (0.1, 0.2)], 2: [(0.2, 0.1), (0.6, 0.7)]}  # a small client is better in 1, a large in 2
    made = [
        dict.fromkeys(COLUMNS, 0) | {"round": now, "client": client, "test_samples": (10, 90)[client]}
        | {"validation_accuracy": own[0], "test_accuracy": own[1]}
        for now, both in scores.items() for client, own in enumerate(both)
    ]  # fmt: skip
    plain, by_samples = curve(made).figures(), curve(made).figures(by_samples=True)
    assert [plain[kind].round for kind in ("selected", "peak")] == [1, 1]
    assert [by_samples[kind].round for kind in ("selected", "peak")] == [2, 2]
    assert by_samples["peak"].weighted == pytest.approx(0.64)


def test_selection_never_looks_at_test_data() -> None:
    changed = [row | {"test_accuracy": 1.0 - (row["test_accuracy"] or 0)} for row in rows()]
    assert curve(changed).figures()["selected"].round == curve(rows()).figures()["selected"].round


def test_totals() -> None:
    assert totals(rows())["up_bytes"] == 3 * 60
    assert totals(rows())["flops"] == 2 * 60


def test_history_file_is_read_by_pandas_and_by_us(tmp_path: Path) -> None:
    history = History(tmp_path / "history.csv")
    finished("fedmoe", make_task(), observers=(history,), evaluate_every=2)
    assert read_history(history.path or Path()) == history.rows
    table = pd.read_csv(tmp_path / "history.csv")
    assert list(table.columns) == list(COLUMNS)
    # Rounds 2 and 3 (the last) are evaluated for all six clients; in round 1 only the sampled ones have a row.
    assert table.groupby("round").size().to_dict() == {1: 4, 2: 6, 3: 6}
    assert table[table["round"] == 1]["test_accuracy"].isna().all()
    assert table[table["round"] > 1]["test_accuracy"].between(0, 1).all()
    assert table["train_loss"].notna().sum() == 3 * 4


def test_flops_are_those_of_forward_and_backward() -> None:
    """One linear head on fixed sizes can be counted by hand: 2·batch·in·out, once forward, once per needed gradient."""
    task = make_task("cnn5", sizes=(32, 20))
    history = History()
    finished("fedavg", task, observers=(history,), participation=1.0, rounds=1)
    macs = {
        "conv1": 16 * 25 * 64, "conv2": 32 * 16 * 25 * 16, "fc1": 128 * 500, "fc2": 500 * 500, "head": 500 * 4,
    }  # fmt: skip
    # Backward costs twice the forward pass, except that the images need no gradient.
    per_sample = 2 * (3 * sum(macs.values()) - macs["conv1"])
    assert [row["flops"] for row in history.rows] == [2 * 16 * per_sample, 2 * 16 * per_sample]


def test_counting_flops_changes_nothing() -> None:
    task = make_task()
    with_meter = finished("fedmoe", task, observers=(History(),))
    without = finished("fedmoe", task)
    assert all(torch.equal(with_meter.server[n], t) for n, t in without.server.items())
