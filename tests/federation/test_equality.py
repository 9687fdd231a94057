"""A federation ends where a simulation with the same seed ends: the same parameters, figures and bytes."""

from pathlib import Path

import pytest
from neighbourhood import Neighbourhood, settings_for
from support import assert_close, make_simulation, make_task, states

from fedexperts.measure import Fetches, History
from fedexperts.methods import registry

TASK = make_task(sizes=(32, 29, 12))


IN_SHORT = ("fedavg", "fedmoe", "fedmoe-da", "fedtgp")
OTHERS = [name for name, kind in registry().items() if not kind.goes_on_from and name not in IN_SHORT]


@pytest.mark.parametrize("name", [*IN_SHORT, *(pytest.param(name, marks=pytest.mark.federation) for name in OTHERS)])
def test_a_federation_equals_the_simulation(name: str, tmp_path: Path) -> None:
    values = {"participation": 0.7}
    settings = settings_for(name, TASK, **values)
    there = Neighbourhood(tmp_path, TASK)
    federation = there.coordinator(settings)
    federation.run()

    history = History(tmp_path / "history.csv")
    observers = (history, Fetches(tmp_path / "fetches.csv"))
    simulation = make_simulation(name, TASK, observers=observers, **values)
    simulation.run()

    assert_close(there.states(federation), states(simulation))
    for table in ("history.csv", "fetches.csv", "absences.csv"):
        found, expected = (folder / table for folder in (tmp_path / "server", tmp_path))
        assert found.exists() == expected.exists()
        if expected.exists():
            assert found.read_text() == expected.read_text()
    assert there.fetched == sum(row["peer_bytes"] for row in history.rows)
