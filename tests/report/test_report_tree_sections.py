"""Sections about a shared expert that grows: what is drawn and said is what was found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedexperts.analyses import USE, Use
from fedexperts.measure import Record
from fedexperts.methods.evolution import SPECTRA, TREE
from fedexperts.report import peer_sections, tree_sections
from fedexperts.report.page import write_page

HEADER = "round,sub_expert,rank,tail,threshold,mixture_tail,change"
# Sub-expert 0 expands after round 1, and its mixture shrinks after round 3.
LOG = [
    "1,0,0.9,0.01,0.8,0,1", "1,1,0.7,0.01,0.8,0,0",
    "2,0,0.9,0.02,0.8,0.04,0", "2,1,0.7,0.01,0.7,0,0", "2,2,0.9,0.06,0.8,0.04,0",
    "3,0,0.9,0.04,0.8,0.06,-1", "3,1,0.7,0.01,0.7,0,0", "3,2,0.9,0.08,0.8,0.06,0",
    "4,0,0.9,0.04,0.8,0,0", "4,1,0.7,0.01,0.7,0,0",
]  # fmt: skip


@pytest.fixture
def grown(make_record, tmp_path: Path) -> Record:
    """Three clients in four rounds; 0 and 2 have most of one class, and use the same."""
    (tmp_path / TREE).write_text("\n".join([HEADER, *LOG, ""]))
    values = {0: ("0.95", (1, 1, 1, 1)), 1: ("0.5", (1, 0.9, 0.2, 0.001))}
    rows = [f"{leaf},{v},{m},{c},{x}" for leaf, (v, own) in values.items() for m in (0, 1) for c, x in enumerate(own)]
    (tmp_path / SPECTRA).write_text("\n".join(["sub_expert,threshold,matrix,component,value", *rows, ""]))
    Use([0, 1], np.array([1, 0.5, 1]), np.array([[1, 0], [0, 0.5], [1, 0]])).save(tmp_path / USE)
    options = {"branches": 2, "limit": 4, "tail_share": 0.75, "scale_every": 2}
    record = make_record("fedemoe", title="FedEMoE", clients=3, classes=2, rounds=4, options=options)
    for row in record.rows:
        row["up_bytes"] = 0 if row["round"] in (1, 4) else 400_000
    return replace(record, counts=np.array([[5, 0], [0, 5], [4, 1]]), folder=tmp_path)


def test_the_tree_and_its_causes(grown: Record) -> None:
    tree, why = tree_sections.tree(grown)
    (bars,) = tree.figure.data
    assert tree.figure.layout.yaxis.ticktext == ("0", "0.0", "0.1", "1")
    drawn = [*zip(bars.y, bars.base, bars.x, bars.text, strict=True)]
    assert drawn == [
        (0, 0, 1, "0"),
        (0, 1, 2, "rank 0.9 &gt; 0.8"),
        (0, 3, 2, "0 tail energy 0.06 &gt; 0.05"),
        (1, 1, 2, "0"),
        (2, 1, 2, "2"),
        (3, 0, 5, "1"),
    ]
    assert tree.finding == (
        "From 2 to 2 sub-experts (3 at most): once one became a mixture, once a mixture became one again; the last "
        "change was in round 3 of 4."
    )
    lines = {trace.name: trace for trace in why.figure.data[::2] if trace.name}
    np.testing.assert_allclose(lines["sub-expert 1"].y, [-0.1, 0, 0, 0], atol=1e-9)
    *_, up, down = why.figure.data
    assert (list(up.x), list(down.x), list(down.y)) == ([1], [3], [0.06])
    assert "every 2 rounds those above the line" in why.how_to_read


def test_a_place_that_was_empty_leaves_a_gap(grown: Record) -> None:
    (grown.folder / TREE).write_text("\n".join([HEADER, *LOG, "5,0,0.9,0.04,0.8,0,0", "6,2,0.9,0.04,0.8,0,0", ""]))
    _, why = tree_sections.tree(grown)
    [line] = [trace for trace in why.figure.data if trace.name == "sub-expert 2" and trace.showlegend is None]
    np.testing.assert_array_equal(line.x, [2, 3, np.nan, 6])


def test_a_tree_that_does_not_change(grown: Record) -> None:
    (grown.folder / TREE).write_text("\n".join([HEADER, "1,0,0.7,0.01,0.8,0,0", "1,1,0.7,0.01,0.8,0,0", ""]))
    tree, _ = tree_sections.tree(grown)
    assert tree.finding == "The tree has stayed as it was: 2 sub-experts."
    assert len(tree.figure.data[0].y) == 2


def test_spectra_with_their_labels(grown: Record) -> None:
    (section,) = tree_sections.spectra(grown)
    assert [trace.name for trace in section.figure.data] == [*["0: over-fitting"] * 2, *["1: normal"] * 2]
    np.testing.assert_allclose(section.figure.data[2].y, [1, 0.9, 0.2, 0.001])
    np.testing.assert_allclose(section.figure.data[2].x, [0.25, 0.5, 0.75, 1])
    assert section.finding == (
        "Of 2 sub-experts: 1 normal (1), 1 over-fitting (0). Effective rank 0.750 to 1.000, tail energy 0.0000 to "
        "0.2500. The rule (above the threshold) would expand 0, 1."
    )


def test_use_by_client_and_class(grown: Record) -> None:
    (section,) = tree_sections.use(grown)
    (heat,) = section.figure.data
    assert heat.x == ("all", "0", "1")
    np.testing.assert_allclose(heat.z, [[1, 1, 0], [1, 1, 0], [0.5, 0, 0.5]])
    assert [row[0] for row in heat.customdata] == [0, 2, 1]
    assert section.finding == (
        "The shared expert is asked for 83 % of a client's samples, on average, and 1.0 of its 2 sub-experts. Most "
        "clients ask sub-expert 0 (2 of 3), fewest 1 (1). Two clients share 100 % of what they use if they have the "
        "same most frequent class, 0 % if not."
    )


def test_traffic_while_the_tree_grows(grown: Record, make_record) -> None:
    other = make_record("fedavg", clients=3, rounds=4)
    section = peer_sections.traffic([grown, other])
    *_, size = section.figure.data
    assert (list(size.x), list(size.y), size.line.shape, size.xaxis) == ([1, 2, 3, 4], [2, 3, 3, 2], "hv", "x3")
    assert section.finding.startswith(  # three clients: 0.8 MB down, and in rounds 2 and 3 0.4 MB up
        "FedEMoE: 12.0 MB through the server, 0 MB between clients (in a round 2.40 MB with 2, 3.60 MB with 3 "
        "sub-experts; the last change was in round 3); FedAvg: "
    )
    assert "how many sub-experts" in section.how_to_read
    assert "how many sub-experts" not in peer_sections.traffic([other]).how_to_read
    many = [grown, *(make_record("fedavg", clients=3, rounds=4, lr=rate) for rate in (0.1, 0.2, 0.3, 0.4, 0.5))]
    assert peer_sections.traffic(many).finding == section.finding.partition("; FedAvg")[0] + "."


def test_the_report_shows_it(grown: Record, make_record, tmp_path: Path) -> None:
    page = write_page([grown], tmp_path / "page.html").read_text(encoding="utf-8")
    headings = ("How the shared expert grew", "Why it grew", "Spectra of the", "Who uses which", "Traffic over the")
    for heading in headings:
        assert heading in page
    plain = write_page([make_record("fedmoe", rounds=2)], tmp_path / "plain.html").read_text(encoding="utf-8")
    for heading in headings:
        assert heading not in plain
    for sections in (tree_sections.tree, tree_sections.spectra, tree_sections.use):
        assert not list(sections(replace(grown, folder=None)))
