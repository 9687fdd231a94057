"""The sections of the analyses: what is drawn and said is what was found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedexperts.analyses import GATES, REPRESENTATIONS, SampleTable
from fedexperts.measure import Record
from fedexperts.report import sections
from fedexperts.report.figures import accuracy_curves
from fedexperts.report.page import write_analysis, write_page
from fedexperts.report.runs import REFERENCE_COLOUR, line_up, lines


def bars(figure):
    """Panel → name → length."""
    return [dict(zip(trace.y, trace.x, strict=True)) for trace in figure.data]


def test_cost_of_all_runs_side_by_side(make_record):
    records = [make_record("fedmoe", rounds=40), make_record("standalone", rounds=40)]
    section = sections.cost(records, 50)
    rounds, megabytes, flops = bars(section.figure)
    moe = int(np.flatnonzero(records[0].curve.test.mean(axis=1) >= 0.5)[0]) + 1
    assert rounds["FedMoE"] == moe
    assert megabytes == {"FedMoE": pytest.approx(12 * moe), "Standalone": 0}  # 10 clients × (0.4 + 0.8) MB a round
    assert flops["FedMoE"] == pytest.approx(30 * moe)
    assert section.finding.startswith("First at 50 %: ")


def test_not_reached_is_a_result(make_record):
    section = sections.cost([make_record("fedmoe"), make_record("fedavg")], 85)
    assert list(section.figure.data[0].text)[1] == "not reached"
    assert section.finding.endswith("Not reached by FedAvg.")
    assert sections.cost([make_record("fedavg")], 99).finding == "None of these runs reaches 99 %."


def test_clients_in_order_and_in_words(make_record):
    run, other = make_record("fedmoe", clients=40), make_record("standalone", clients=40, level=0.9)
    section = sections.clients(run, other)
    better, worse = section.figure.data
    own, reference = (np.array(record.figures["selected"].clients) for record in (run, other))
    points = 100 * (own - reference)
    shown = dict(zip([*better.customdata, *worse.customdata], [*better.y, *worse.y], strict=True))
    np.testing.assert_allclose([shown[client] for client in range(40)], points)
    assert (np.diff([*worse.y, *better.y]) >= 0).all()
    assert worse.marker.color == REFERENCE_COLOUR
    assert section.finding.startswith(
        f"FedMoE is better for {(points > 0).sum()} of 40 clients, equal for 0, worse for {(points < 0).sum()}; "
    )


def test_a_line_of_seeds_is_their_mean_with_a_band_over_them(make_record):
    records = [make_record("fedmoe", seed=seed, level=level) for seed, level in ((1, 0.7), (2, 0.8), (3, 0.75))]
    records.append(make_record("fedavg"))
    band, seeds, single = accuracy_curves(records).data
    means = 100 * np.stack([record.curve.test.mean(axis=1) for record in records[:3]])
    assert (seeds.name, single.name) == ("FedMoE, 3 seeds", "FedAvg (seed 0)")
    np.testing.assert_allclose(seeds.y, means.mean(axis=0))
    np.testing.assert_allclose(band.y[:40] - band.y[40:][::-1], 2 * means.std(axis=0, ddof=1))
    assert band.name == seeds.name  # no band over clients beside one over seeds
    section = sections.convergence(records)
    selected = [100 * record.figures["selected"].mean for record in records[:3]]
    assert f"FedMoE, 3 seeds: {np.mean(selected):.2f} ± {np.std(selected, ddof=1):.2f} %" in section.finding
    assert "over the seeds" in section.how_to_read


def uneven(make_record, **settings) -> Record:
    """The best round is the first by clients, the second by samples: one of three clients has nearly all of them."""
    record = make_record("fedmoe", clients=3, rounds=3, **settings)
    scores = {1: (0.8, 0.8, 0.2), 2: (0.4, 0.4, 0.7), 3: (0.3, 0.3, 0.3)}
    for row in record.rows:
        row["validation_accuracy"] = row["test_accuracy"] = scores[row["round"]][row["client"]]
        row["test_samples"] = (10, 10, 80)[row["client"]]
    return record


def test_curves_where_all_samples_count_alike(make_record):
    record = uneven(make_record)
    plain, weighted = (sections.convergence([record], samples) for samples in (False, True))
    for section, mean, selected in ((plain, (60, 50, 30), 1), (weighted, (32, 64, 30), 2)):
        band, curve = section.figure.data
        np.testing.assert_allclose(curve.y, mean)
        assert [bool(size) for size in curve.marker.size] == [number == selected for number in (1, 2, 3)]
        np.testing.assert_allclose((band.y[:3] + band.y[3:][::-1]) / 2, mean)
    std = np.sqrt([0.2 * 0.48**2 + 0.8 * 0.12**2, 0.2 * 0.24**2 + 0.8 * 0.06**2, 0])
    np.testing.assert_allclose(weighted.figure.data[1].customdata, 100 * std, atol=1e-9)
    assert "weighted by their test samples" in weighted.how_to_read
    assert "weighted" not in plain.how_to_read
    seeds = sections.convergence([record, uneven(make_record, seed=1)], samples=True)
    np.testing.assert_allclose(seeds.figure.data[1].y, (32, 64, 30))
    assert seeds.finding == "Selected accuracy: FedMoE, 2 seeds: 64.00 ± 0.00 %."


def test_a_sweep_where_all_samples_count_alike(make_record):
    records = [uneven(make_record, options={"gate_lr": rate}) for rate in (0.1, 0.2)]
    plain, weighted = (sections.sweep(records, samples=samples) for samples in (False, True))
    np.testing.assert_allclose(plain.figure.data[0].y, [60, 60])
    np.testing.assert_allclose(weighted.figure.data[0].y, [64, 64])
    assert "weighted by their test samples" in weighted.how_to_read
    assert "weighted" not in plain.how_to_read


def test_seeds_share_a_colour_and_nothing_else_looks_alike(make_record):
    records = [
        make_record(m, seed=s, lr=lr, rounds=2) for m in ("fedmoe", "standalone") for lr in (0.1, 0.2) for s in (1, 2)
    ]
    runs = line_up(records)
    assert [run.colour for run in runs[:4:2]] == [run.colour for run in runs[1:4:2]]
    assert len({(run.colour, run.dash) for run in runs}) == len(records)
    drawn = lines(runs)
    assert [line.run.name for line in drawn] == [
        f"{m} (lr {lr}), 2 seeds" for m in ("FedMoE", "Standalone") for lr in (0.1, 0.2)
    ]
    assert len({(line.run.colour, line.run.dash) for line in drawn}) == 4


def test_sweep_of_seeds_and_a_level(make_record):
    records = [
        make_record("fedmoe", options={"gate_lr": rate}, seed=seed, level=level, rounds=5)
        for rate, level in ((0.001, 0.5), (0.1, 0.8))
        for seed in (1, 2)
    ]
    section = sections.sweep([*records, make_record("standalone", rounds=5)])
    assert section.heading == "Accuracy against gate lr"
    line, level = (trace for trace in section.figure.data if trace.mode != "none")
    assert (line.name, level.name) == ("FedMoE", "Standalone")
    np.testing.assert_array_equal(line.x, [0.001, 0.1])
    assert line.y[0] == pytest.approx(100 * np.mean([record.figures["selected"].mean for record in records[:2]]))
    assert level.y[0] == level.y[1]
    assert section.figure.layout.xaxis.type == "log"
    assert "level line" in section.how_to_read


def test_values_with_a_zero_that_are_far_apart_stand_in_even_steps(make_record):
    records = [make_record("fedmoe-da", options={"asked": asked}, rounds=2) for asked in (199, 0, 2)]
    section = sections.sweep(records, called="P")
    assert section.heading == "Accuracy against P"
    assert list(section.figure.data[0].x) == ["0", "2", "199"]
    assert section.figure.layout.xaxis.type == "category"


def test_a_reference_on_another_task_says_so(make_record):
    records = [make_record("fedmoe", options={"gate_lr": rate}, rounds=2) for rate in (0.1, 0.2)]
    section = sections.sweep([*records, make_record("standalone", rounds=2, balanced=False)])
    names = [trace.name for trace in section.figure.data]
    assert names == ["FedMoE (balanced True)", "Standalone (balanced False)"]


# --- what analyses left in a run's folder


@pytest.fixture
def analysed(make_record, tmp_path: Path) -> Record:
    """Two clients; the local expert's weights are 0.2 and 0.4 for one, 0.5 and 0.9 for the other."""
    who, what = np.array([0, 0, 1, 1]), np.array([0, 2, 2, 2])
    local = np.array([0.2, 0.4, 0.5, 0.9])
    table = SampleTable(who, what, np.arange(4), ("global", "local"), np.stack([1 - local, local], axis=1))
    table.save(tmp_path / GATES)
    replace(table, names=("x", "y"), values=np.arange(8.0).reshape(4, 2)).save(tmp_path / REPRESENTATIONS)
    return replace(make_record("fedmoe", clients=2, classes=3, rounds=2), folder=tmp_path)


def test_gates_by_client_class_and_both(analysed):
    by_client, by_class, by_both = sections.gates(analysed)
    assert [(trace.x0, list(trace.y)) for trace in by_client.figure.data] == [("0", [0.2, 0.4]), ("1", [0.5, 0.9])]
    assert by_client.finding == (
        "The local expert weighs 0.50 on average (standard deviation 0.25 over the samples), 0.30 to 0.70 by client, "
        "0.20 to 0.70 by client and class."
    )
    (box,) = by_class.figure.data
    assert list(box.x) == ["0", "2"]
    assert list(box.median) == [0.2, 0.5]
    assert list(box.upperfence) == [0.2, 0.9]
    (heat,) = by_both.figure.data
    np.testing.assert_allclose(heat.z, [[0.2, np.nan, 0.4], [np.nan, np.nan, 0.7]])


def test_gates_of_chosen_clients(analysed):
    first, *_ = sections.gates(analysed, [1], "mine")
    assert [trace.x0 for trace in first.figure.data] == ["1"]
    assert first.heading == "Gate of mine, by client, 1 of 2 clients"


def test_gates_of_many_experts(analysed):
    weights = np.array([[0.2, 0.3, 0.5], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])
    who = np.array([0, 0, 1, 1])
    SampleTable(who, who, who, ("a", "b", "c"), weights).save(analysed.folder / GATES)
    by_client, _, by_expert = sections.gates(analysed)
    assert {trace.name for trace in by_client.figure.data} == {"a", "b", "c"}
    assert by_client.finding.startswith("Mean weights: a 0.25 (0.20 to 0.30 by client), b 0.25 ")
    np.testing.assert_allclose(by_expert.figure.data[0].z, [[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]])


def test_plane_by_client_and_by_class(analysed):
    (section,) = sections.representations(analysed)
    groups = {(trace.legend, trace.name): list(trace.x) for trace in section.figure.data}
    assert groups == {
        ("legend", "0"): [0, 2], ("legend", "1"): [4, 6], ("legend2", "0"): [0], ("legend2", "2"): [2, 4, 6],
    }  # fmt: skip
    assert section.how_to_read.startswith("4 test samples of 2 clients")


def test_many_groups_are_a_scale(analysed):
    who = np.arange(20)
    SampleTable(who, who % 3, who, ("x", "y"), np.ones((20, 2))).save(analysed.folder / REPRESENTATIONS)
    by_client, *by_class = next(iter(sections.representations(analysed))).figure.data
    np.testing.assert_array_equal(by_client.marker.color, who)
    assert len(by_class) == 3


def test_the_report_shows_what_is_there(analysed, make_record, tmp_path):
    def headings(records):
        return write_page(records, tmp_path / "page.html").read_text(encoding="utf-8")

    page = headings([analysed])
    for heading in ("Gate of FedMoE, by client<", "Gate of FedMoE, by client and class", "Representations of FedMoE"):
        assert heading in page
    alone = headings([make_record(rounds=2)])
    assert not any(words in alone for words in ("Gate of", "Representations of", " % costs", "Accuracy against"))
    swept = headings([make_record(rounds=2, alpha=alpha) for alpha in (0.1, 0.5)])
    assert "Accuracy against alpha" in swept
    assert " % costs" not in swept  # one accuracy does not mean the same on two tasks
    assert " % costs" in headings([make_record(rounds=2, seed=seed) for seed in (1, 2)])


def test_hostile_names_are_text(analysed, tmp_path):
    hostile = '<a href="https://example.org">x</a>'
    SampleTable(*[np.arange(3)] * 3, ("g", hostile), np.ones((3, 2)) / 2).save(analysed.folder / GATES)
    record = replace(analysed, title=hostile, class_names=[hostile] * 3, counts=np.ones((3, 3), dtype=int))
    found = [*sections.gates(record), *sections.representations(record), sections.clients(record, record)]
    found += [sections.cost([record]), sections.convergence([record])]
    assert not any("<a" in str(section.figure) for section in found)
    page = write_analysis([record], found, tmp_path).read_text(encoding="utf-8")
    assert '<a href="http' not in page[page.index("<body>") :]
