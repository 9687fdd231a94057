"""Sections about a pool of modules: what is drawn and said is what was found."""

from dataclasses import replace

import numpy as np
import pytest

from fedexperts.measure import Record
from fedexperts.report import pool_sections
from fedexperts.report.page import write_page
from fedexperts.report.verdict import mixture_verdict

COUNTS = np.array([[9, 0, 0], [9, 0, 0], [0, 9, 0]])
"""Clients 0 and 1 share all, client 2 nothing."""
SCORES = {1: [(0.5, 0.6), (0.5, 0.5), (0.5, 0.8)], 2: [(0.7, 0.8), (0.4, 0.9), (0.6, 0.7)]}
"""By round, every client's validation and test accuracy. Clients 0 and 2 will use the mixture, and 2 lose by it."""


@pytest.fixture
def pooled(make_record) -> Record:
    record = make_record("pm-moe", title="PM-MoE", clients=3, classes=3, rounds=2, options={"base": "fedrod"})
    for row in record.rows:
        row["validation_accuracy"], row["test_accuracy"] = SCORES[row["round"]][row["client"]]
    return replace(record, counts=COUNTS)


def test_who_uses_the_mixture_and_what_for(pooled):
    section, _ = pool_sections.mixture(pooled)
    uses, stays = section.figure.data
    assert [uses.name, stays.name] == ["uses the mixture", "stays with FedRoD"]
    # From the greatest loss to the greatest gain: clients 2, 0, 1.
    assert (list(uses.x), list(uses.customdata)) == ([0, 1], [2, 0])
    np.testing.assert_allclose(uses.y, [-10, 20])
    assert (list(stays.x), list(stays.customdata)) == ([2], [1])
    np.testing.assert_allclose(stays.y, [40])
    assert section.finding == mixture_verdict(pooled)
    assert section.finding == (
        "FedRoD alone: 63.33 %. The mixture for all clients: 80.00 % (round 2). For those only whose validation "
        "accuracy it raises, 2 of 3: 66.67 %. Gain over FedRoD if all choose so: +3.33 points (std 12.47 over the "
        "clients, worst -10.00, 1 lose); with the mixture for all: +16.67 points (std 20.55 over the clients, worst "
        "-10.00, 1 lose)."
    )


def test_gain_against_what_others_share(pooled):
    _, section = pool_sections.mixture(pooled)
    uses, stays = section.figure.data
    np.testing.assert_allclose(uses.x, [0.5, 0])
    np.testing.assert_allclose(uses.y, [20, -10])
    np.testing.assert_allclose([*stays.x, *stays.y], [0.5, 40])
    assert section.finding == "Rank correlation of gain and sharing: +0.87 over 3 clients (p = 0.33)."
    _, alike = pool_sections.mixture(replace(pooled, counts=np.ones((3, 3))))
    assert alike.finding == "All clients gain the same, or share the same: there is nothing to see."


def test_the_report_shows_it_for_those_who_pool_only(pooled, make_record, tmp_path):
    heading = "To use the mixture or not: PM-MoE"
    both = [make_record("fedavg", clients=3, rounds=2), pooled]
    assert heading in write_page(both, tmp_path / "page.html").read_text(encoding="utf-8")
    assert heading not in write_page(both[:1], tmp_path / "page.html").read_text(encoding="utf-8")
    assert mixture_verdict(both[0]) == ""
