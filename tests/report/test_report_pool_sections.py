"""Sections about a pool of modules: what is drawn and said is what was found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedexperts.analyses import POOL, Pool
from fedexperts.measure import Record
from fedexperts.report import pool_sections
from fedexperts.report.page import write_analysis, write_page
from fedexperts.report.runs import run_names
from fedexperts.report.verdict import mixture_verdict

COUNTS = np.array([[9, 0, 0], [9, 0, 0], [0, 9, 0]])
"""Clients 0 and 1 share all, client 2 nothing."""
SCORES = {1: [(0.5, 0.6), (0.5, 0.5), (0.5, 0.8)], 2: [(0.7, 0.8), (0.4, 0.9), (0.6, 0.7)]}
"""By round, every client's validation and test accuracy. Clients 0 and 2 will use the mixture, and 2 lose by it."""

BEFORE = {1: [(0.6, 0.8), (0.6, 0.6), (0.5, 0.8)], 2: [(0.5, 0.6), (0.5, 0.5), (0.5, 0.8)]}
"""The same of the base's own run, which is best in round 1; to client 0 the mixture gives what it had there."""
ALONE = (
    "FedRoD alone: 63.33 % after its last round. The mixture for all clients: 80.00 % (round 2). For those only whose "
    "validation accuracy it raises, 2 of 3: 66.67 %. Gain over that last round if all choose so: +3.33 points (std "
    "12.47 over the clients, worst -10.00, 1 lose); with the mixture for all: +16.67 points (std 20.55 over the "
    "clients, worst -10.00, 1 lose)."
)


@pytest.fixture
def pooled(make_record) -> Record:
    record = make_record("pm-moe", title="PM-MoE", clients=3, classes=3, rounds=2, options={"base": "fedrod"})
    for row in record.rows:
        row["validation_accuracy"], row["test_accuracy"] = SCORES[row["round"]][row["client"]]
    return replace(record, counts=COUNTS)


@pytest.fixture
def asked(pooled, tmp_path: Path) -> Record:
    """Client 2 keeps its module out of the pool; γ = 0.5 removes one other module of each, always the same one."""
    nobody = np.nan
    Pool(
        samples=np.array([[10, 10, nobody], [30, 30, nobody], [20, 20, 20]]),
        weight=np.array([[0.5, 0.25, nobody], [0.5, 0.3, nobody], [0.1, 0, 0.8]]),
        confidence=np.array([[1.5, 1.1, nobody], [1.2, 1.4, nobody], [1.3, 1.0, 1.6]]),
        removed=np.array([[0, 0.5, nobody], [0, 0, nobody], [0, 1, 0]]),
        right=np.array([[0.6, 0.5, nobody], [0.4, 0.5, nobody], [0.25, 0.25, 0.8]]),
        weight_right=np.array([[0.4, 0.2, nobody], [0.3, 0.2, nobody], [0.05, 0, 0.7]]),
        removed_right=np.array([[0, 0.2, nobody], [0, 0, nobody], [0, 0.25, 0]]),
        right_together=np.array([[0.55, 0.5, nobody], [0.4, 0.45, nobody], [0.2, 0.2, 0.35]]),
    ).save(tmp_path / POOL)
    options = {"base": "fedrod", "denoise": 0.5}
    return replace(pooled, folder=tmp_path, settings=pooled.settings.model_copy(update={"options": options}))


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
    assert section.finding == (f"{ALONE} Over FedRoD's selected round it is not known: its own run is not at hand.")


def test_the_gain_over_the_bases_selected_round_is_said_beside_that_over_its_last(pooled, make_record):
    base = make_record("fedrod", clients=3, classes=3, rounds=2)
    for row in base.rows:
        row["validation_accuracy"], row["test_accuracy"] = BEFORE[row["round"]][row["client"]]
    assert mixture_verdict(replace(pooled, began_with=base)) == (
        f"{ALONE} FedRoD in its selected round (1): 73.33 %. Gain over that, which is what may be claimed: -6.67 "
        "points (std 4.71 over the clients, worst -10.00, 2 lose, 1 of them although their validation data were for "
        "it)."
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


def test_where_labels_are_not_known_nothing_is_said_of_them(pooled):
    [section] = pool_sections.mixture(replace(pooled, counts=np.zeros((3, 3), int)))
    assert section.heading.startswith("To use the mixture or not")


def test_the_report_shows_it_for_those_who_pool_only(pooled, make_record, tmp_path):
    heading = "To use the mixture or not: PM-MoE"
    both = [make_record("fedavg", clients=3, rounds=2), pooled]
    assert heading in write_page(both, tmp_path / "page.html").read_text(encoding="utf-8")
    assert heading not in write_page(both[:1], tmp_path / "page.html").read_text(encoding="utf-8")
    assert mixture_verdict(both[0]) == ""


def test_whose_modules_are_used(asked):
    section, *_ = pool_sections.pool(asked)
    by_number, by_class = section.figure.data
    np.testing.assert_allclose(by_number.z, [[0.5, 0.25, np.nan], [0.5, 0.3, np.nan], [0.1, 0, 0.8]])
    assert by_class.x == ("0", "1", "2")
    # Own: (0.5 + 0.3 + 0.8) / 3; others: (0.25 + 0.5 + 0.1) / 3, of which 0.75 of 0.85 between 0 and 1.
    assert section.finding == (
        "A client's own module has on average 53 % of its weights, all others together have 28 %. 88 % of what they "
        "have is between clients with the same most frequent class; by chance it would be 44 %."
    )


def test_what_is_taken_for_noise(asked):
    _, section, _ = pool_sections.pool(asked)
    confidence, removed = section.figure.data
    np.testing.assert_allclose(confidence.z, [[np.nan, 1.1, np.nan], [1.2, np.nan, np.nan], [1.3, 1.0, np.nan]])
    np.testing.assert_allclose(removed.z, [[np.nan, 0.5, np.nan], [0, np.nan, np.nan], [0, 1, np.nan]])
    assert (confidence.zmin, removed.zmin, removed.zmax) == (None, 0, 1)
    # Others: 10, 30, 20 and 20 samples, removed 5 and 20; of these 2 + 5 right, of all 5 + 12 + 5 + 5.
    assert section.finding == (
        "Of the others' modules 31 % are removed (γ = 0.5). Those are right on 28 % of their samples, those that stay "
        "on 36 %."
    )


def test_nothing_is_removed(asked):
    whole = Pool.load(asked.folder, 3)
    replace(whole, removed=np.where(whole.has, 0, np.nan)).save(asked.folder / POOL)
    _, few, _ = pool_sections.pool(asked)
    assert few.finding == "Nothing is removed: of so few modules γ = 0.5 is less than one."
    settings = asked.settings.model_copy(update={"options": {"base": "fedrod", "denoise": 0.0}})
    _, none, _ = pool_sections.pool(replace(asked, settings=settings))
    assert none.finding == "Nothing is removed: γ = 0."


def test_what_the_theorem_promises(asked):
    *_, section = pool_sections.pool(asked)
    promised, mixture, alone, mean = section.figure.data
    assert [trace.name for trace in section.figure.data] == ["promised", "mixture", "FedRoD alone", "mean module"]
    # Client 1: p = 0.45, weight 5/9 on a module that is right, 3/11 on one that is wrong: α = 28/27, M = 2.
    of_client = dict(zip(promised.customdata, promised.y, strict=True))
    assert of_client[1] == pytest.approx(100 * (55 / 27 * 0.45) / (1 + 28 / 27 * (0.45 + 0.55 / 2)))
    assert list(promised.y) == sorted(promised.y)
    for trace, values in ((mixture, (80, 90, 70)), (alone, (60, 50, 80)), (mean, (55, 45, 130 / 3))):
        np.testing.assert_allclose(trace.y, [values[client] for client in trace.customdata])
    # All together 140 answers to 60 samples, 64 of them right, which weigh 36, the others 13.5. The part of the modules
    # that is right is 0.461 on average, its square 0.383: a variance of 0.171, where p·(1 − p)/M is 0.106.
    assert section.finding == (
        "p = 0.457, α = 2.17, M = 2.33: at least 58.03 % of all test samples are promised, 79.84 % were measured, "
        "which keeps the promise; 0 clients are below their own. Whether the mixture pays is another question: what it "
        "promises to beat is p, and FedRoD alone reaches 61.67 %. Its assumption does not hold: modules are not right "
        "independently of each other. The part of them that is right varies from sample to sample by 1.6 times the "
        "variance that it would have then."
    )


def test_a_broken_promise_and_a_gate_without_preference(asked):
    for row in asked.rows:
        row["test_accuracy"] = 0.3
    *_, section = pool_sections.pool(replace(asked))
    assert "30.00 % were measured, which BREAKS the promise; 3 clients are below their own." in section.finding
    whole = Pool.load(asked.folder, 3)
    replace(whole, weight_right=0.1 * whole.weight).save(asked.folder / POOL)
    *_, section = pool_sections.pool(asked)
    assert section.finding.endswith(
        ": the gates do not prefer modules that are right, and the theorem is about those that do."
    )


def test_modules_that_are_always_right_have_no_bound(asked):
    whole = Pool.load(asked.folder, 3)
    replace(whole, right=np.where(whole.has, 1, np.nan)).save(asked.folder / POOL)
    assert [section.heading.partition(":")[0] for section in pool_sections.pool(asked)] == [
        "Whose modules are used",
        "What is taken for noise",
    ]


def test_the_report_shows_what_was_asked_and_hostile_names_are_text(asked, tmp_path):
    assert "Whose modules are used: PM-MoE" in write_page([asked], tmp_path / "page.html").read_text(encoding="utf-8")
    hostile = '<a href="https://example.org">x</a>'
    record = replace(asked, title=hostile, class_names=[hostile] * 3)
    found = [*pool_sections.mixture(record), *pool_sections.pool(record)]
    assert not any("<a" in str(section.figure) for section in found)
    page = write_analysis([record], found, tmp_path).read_text(encoding="utf-8")
    assert '<a href="http' not in page[page.index("<body>") :]


def test_runs_are_told_apart_by_how_the_run_before_was_made_or_by_its_folder(make_record):
    inside = [{"base": "fedper", "pretraining": {"rounds": 5, "lr": lr}} for lr in (0.1, 0.2)]
    assert run_names([make_record("pm-moe", title="PM-MoE", options=options) for options in inside]) == [
        "PM-MoE (pretraining lr 0.1)",
        "PM-MoE (pretraining lr 0.2)",
    ]
    folders = [{"base": base, "from_": f"/there/{base}", "pretraining": {"x": base}} for base in ("dbe", "gpfl")]
    assert run_names([make_record("pm-moe", title="PM-MoE", options=options) for options in folders]) == [
        "PM-MoE (base dbe, from dbe)",
        "PM-MoE (base gpfl, from gpfl)",
    ]
