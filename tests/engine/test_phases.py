"""A profile says where the time went, and changes nothing."""

import json
from collections import Counter
from pathlib import Path
from time import perf_counter

import pytest
from support import assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.engine.phases import PHASES, TRACE, TRACED
from fedexperts.errors import DivergedError


def test_a_profiled_run_has_the_same_bits(tmp_path: Path) -> None:
    plain = finished("fedmoe-da", make_task(), group_size=2)  # peers, and more waves than one
    profiled = finished("fedmoe-da", make_task(), group_size=2, profile=True, folder=tmp_path / "state")
    assert plain.profile is None
    assert_same_bits(states(profiled), states(plain))


def test_the_parts_sum_to_the_whole() -> None:
    simulation = make_simulation("fedproto", make_task(), profile=True)
    start = perf_counter()
    simulation.run()
    whole = perf_counter() - start
    assert simulation.profile is not None
    spent = simulation.profile.spent
    assert tuple(spent.host) == PHASES
    assert all(seconds > 0 for seconds in spent.host.values())
    assert spent.rounds == 3
    assert simulation.seconds <= sum(spent.host.values()) <= whole  # nothing is left out, nothing counts twice
    assert spent.device == {}


@pytest.mark.parametrize(("rounds", "traced"), [(1, 1), (5, TRACED)])
def test_a_few_rounds_are_traced(tmp_path: Path, rounds: int, traced: int) -> None:
    finished("fedavg", make_task("cnn5/8"), rounds=rounds, profile=True, checkpoint_every=1, folder=tmp_path / "state")
    events = json.loads((tmp_path / TRACE).read_text())["traceEvents"]
    spans = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    assert {*PHASES} - {*spans} == {"other"}
    assert spans["evaluation"] == 2 * traced  # asked, and scored
    assert any(event["name"] == "aten::convolution" for event in events)


def test_a_run_that_fails_is_not_watched_any_more() -> None:
    simulation = make_simulation("fedavg", make_task(), lr=1e30, profile=True)
    with pytest.raises(DivergedError):
        simulation.run()
    assert simulation.profile is not None
    before = dict(simulation.profile.spent.host)
    finished("fedavg", make_task(), rounds=1)
    assert simulation.profile.spent.host == before


def test_a_run_without_rounds_left_keeps_its_trace(tmp_path: Path) -> None:
    finished("fedavg", make_task(), rounds=2, profile=True, folder=tmp_path / "state")
    before = (tmp_path / TRACE).read_bytes()
    again = make_simulation("fedavg", make_task(), rounds=2, profile=True, folder=tmp_path / "state")
    again.restore()
    again.run()
    assert again.profile is None
    assert (tmp_path / TRACE).read_bytes() == before
