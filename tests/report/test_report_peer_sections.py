"""Sections about experts and those who share them: what is drawn and said is what was found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedexperts.analyses import GATES, MATRIX, Matrix, SampleTable
from fedexperts.measure import FETCHES, Record
from fedexperts.report import peer_sections
from fedexperts.report.page import write_analysis, write_page

COUNTS = np.array([[0, 9, 0], [9, 0, 0], [0, 9, 1]])
"""Clients 0 and 2 have mostly class 1, client 1 class 0."""


@pytest.fixture
def shared(make_record, tmp_path: Path) -> Record:
    """Three clients with an expert each: 0 and 2 are mixed of each other, 1 of itself and 0."""
    pairs = [(0, 0, 0.5), (0, 2, 0.5), (1, 1, 0.8), (1, 0, 0.2), (2, 2, 0.5), (2, 0, 0.5)]
    ends = [np.array([[pair[end], 0] for pair in pairs]) for end in (0, 1)]
    Matrix(*ends, np.array([weight for *_, weight in pairs])).save(tmp_path / MATRIX)
    rows = ["2,0,2,e", "3,0,2,e", "3,2,0,e", "3,1,0,e"]
    (tmp_path / FETCHES).write_text("\n".join(["round,client,peer,what", *rows, ""]))
    weights = np.array([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9], [0.2, 0.8]])
    who = np.array([0, 0, 1, 2])
    SampleTable(who, np.array([1, 1, 0, 1]), np.arange(4), ("a", "b"), weights).save(tmp_path / GATES)
    record = make_record("fedmoe", clients=3, classes=3, rounds=2, peer_bytes=2_000_000, class_names=["x", "y", "z"])
    return replace(record, counts=COUNTS, folder=tmp_path)


def test_matrix_by_number_and_by_class(shared):
    (section,) = peer_sections.matrix(shared)
    by_number, by_class = section.figure.data
    np.testing.assert_allclose(by_number.z, [[0.5, 0, 0.5], [0.2, 0.8, 0], [0.5, 0, 0.5]])
    assert by_class.x == by_class.y == ("1", "0", "2")
    np.testing.assert_allclose(by_class.z, [[0.8, 0.2, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]])
    assert by_class.text[0][2] == ""
    assert section.figure.layout.xaxis2.ticktext == ("x", "y")
    assert section.figure.layout.xaxis2.tickvals == ("1", "0")
    # Own: (0.5 + 0.8 + 0.5) / 3. Of the 1.2 from others 1 is between 0 and 2; by chance half of their 1.
    assert section.finding == (
        "A client's experts are on average 60 % its own. 83 % of what comes from others is between clients with the "
        "same most frequent class; by chance it would be 42 %."
    )


def test_matrix_of_single_experts(shared):
    _, section = peer_sections.matrix(shared, experts=True)
    assert section.figure.data[0].x == ("0.0", "1.0", "2.0")
    assert section.figure.data[1].x == ("1.0", "0.0", "2.0")


def test_nothing_from_others_is_said(shared):
    alone = np.array([[0, 0], [1, 0], [2, 0]])
    Matrix(alone, alone, np.ones(3)).save(shared.folder / MATRIX)
    (section,) = peer_sections.matrix(shared)
    assert section.finding == "A client's experts are on average 100 % its own. Nothing comes from others."


def test_experts_by_class_and_by_client(shared):
    together, of_clients = peer_sections.experts(shared, [2, 0])
    np.testing.assert_allclose(together.figure.data[0].z, [[0, 2 / 3, np.nan], [1, 1 / 3, np.nan]])
    assert together.figure.layout.yaxis.ticktext == ("a", "b")
    assert together.finding == (
        "Chosen most: a, for 50 % of the samples; least: a, for 50 %. 75 % of the samples go where most of their class "
        "go (50 % if classes made no difference); on their own client, 100 % (100 %)."
    )
    assert of_clients.figure.layout.yaxis.ticktext == ("client 2: a", "client 2: b", "client 0: a", "client 0: b")
    np.testing.assert_allclose(np.array(of_clients.figure.data[0].z)[:, 1], [0, 1, 1, 0])
    assert np.isnan(np.array(of_clients.figure.data[0].z)[:, [0, 2]]).all()


def test_one_expert_for_everything_is_said(shared):
    table = SampleTable(*[np.arange(3)] * 3, ("a", "b"), np.array([[0.1, 0.9]] * 3))
    table.save(shared.folder / GATES)
    (section,) = peer_sections.experts(shared)
    assert section.finding == "Every sample goes to b: the others are not used."


def test_peers_as_a_graph(shared):
    (section,) = peer_sections.peers(shared)
    drawn = {
        (trace.legendgroup, trace.line.width): np.round([*trace.x, *trace.y], 3).tolist()
        for trace in section.figure.data
        if trace.legendgroup and trace.x[0] is not None
    }
    # Around the circle from the top, clockwise: 1, 0, 2. The strongest is 9 wide, of three fetches; the other a third.
    places = {1: (0, 1), 0: (0.866, -0.5), 2: (-0.866, -0.5)}
    assert drawn == {
        ("clients with the same most frequent class", 9.0): [places[0][0], places[2][0], places[0][1], places[2][1]],
        ("other clients", 3.0): [places[0][0], places[1][0], places[0][1], places[1][1]],
    }
    assert "in rounds 2 to 3; all pairs." in section.how_to_read
    assert section.finding == (
        "4 fetches between 2 of 3 pairs of clients, most often clients 0 and 2 (3); asked most: client 0 (2). "
        "75 % of the fetches are between clients with the same most frequent class; by chance it would be 38 %."
    )
    (strongest,) = peer_sections.peers(shared, edges=1)
    assert "the 1 most frequent of 2 pairs" in strongest.how_to_read
    assert len(strongest.figure.data) == len(section.figure.data) - 1


def test_traffic_in_a_round_and_so_far(shared, make_record):
    section = peer_sections.traffic([shared, make_record("standalone", clients=3, rounds=2)])
    drawn = [(trace.name, trace.line.dash, list(trace.y)) for trace in section.figure.data]
    assert drawn == [  # three clients: 0.4 MB up and 0.8 down, 2 between them
        ("FedMoE, server", "solid", pytest.approx([3.6, 3.6])),
        ("FedMoE, between clients", "dot", pytest.approx([6, 6])),
        ("FedMoE, server", "solid", pytest.approx([3.6, 7.2])),
        ("FedMoE, between clients", "dot", pytest.approx([6, 12])),
    ]
    assert section.finding == (
        "FedMoE: 7.20 MB through the server, 12.0 MB between clients; "
        "Standalone: 0 MB through the server, 0 MB between clients."
    )
    assert section.figure.layout.yaxis.type is None


def test_traffic_of_seeds_is_their_mean_and_far_apart_means_powers_of_ten(make_record):
    seeds = [make_record("fedmoe", rounds=2, seed=seed, peer_bytes=seed * 10**8) for seed in (1, 3)]
    for row in (row for record in seeds for row in record.rows if row["round"] == 1):
        row["peer_bytes"] = 0  # nobody knows a peer yet
    section = peer_sections.traffic(seeds)
    peers = section.figure.data[1]
    assert peers.name == "FedMoE, 2 seeds, between clients"
    np.testing.assert_allclose(peers.y, [np.nan, 2000])
    assert section.figure.layout.yaxis.type == "log"


def test_nothing_was_sent(make_record):
    section = peer_sections.traffic([make_record("standalone", rounds=2)])
    assert not section.figure.data
    assert section.finding == "Standalone: 0 MB through the server, 0 MB between clients."


def test_the_report_shows_what_is_there(shared, make_record, tmp_path):
    headings = (
        "Experts of FedMoE, by class",
        "Who is mixed of whom: FedMoE",
        "Who fetches from whom: FedMoE",
        "Traffic over the rounds",
    )
    page = write_page([shared], tmp_path / "page.html").read_text(encoding="utf-8")
    assert [heading for heading in headings if heading in page] == list(headings)
    other = write_page([make_record(rounds=2)], tmp_path / "page.html").read_text(encoding="utf-8")
    assert not any(heading in other for heading in headings)


def test_hostile_names_are_text(shared, tmp_path):
    hostile = '<a href="https://example.org">x</a>'
    table = SampleTable.load(shared.folder, GATES, "gates")
    replace(table, names=("a", hostile)).save(shared.folder / GATES)
    record = replace(shared, title=hostile, class_names=[hostile] * 3)
    found = [*peer_sections.experts(record, [0]), *peer_sections.matrix(record, True), *peer_sections.peers(record)]
    found.append(peer_sections.traffic([record]))
    assert not any("<a" in str(section.figure) for section in found)
    page = write_analysis([record], found, tmp_path).read_text(encoding="utf-8")
    assert '<a href="http' not in page[page.index("<body>") :]
