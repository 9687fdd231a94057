"""Who fetched what from whom, in a file that survives interruptions."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from support import finished, make_simulation, make_task

import fedexperts
from fedexperts.errors import SavedStateError
from fedexperts.measure import FETCHES, Fetches
from fedexperts.measure.growing import GrowingTable

DIGITS = {"data": "digits", "clients": 3, "samples_per_client": 40, "model": "cnn-da"}
QUICK = {"rounds": 3, "batch_size": 32, "device": "cpu", "experts": 2, "asked": 1}


def test_every_fetch_is_a_row(tmp_path: Path) -> None:
    options, everybody = {"asked": 2, "interval": 3}, {"participation": 1.0}
    fetches = Fetches(tmp_path / FETCHES)
    simulation = make_simulation(
        "fedmoe-da", make_task("cnn-da"), observers=(fetches,), rounds=4, options=options, **everybody
    )
    wanted = []
    for _ in range(4):
        simulation.step()
        for client in range(6):
            own = simulation.fleet.kept(client)  # places of weight 0 are nobody
            places, weights = own["neighbours.places"].flatten(0, 1), own["neighbours.weights"].flatten()
            entries = zip(places.tolist(), weights.tolist(), strict=True)
            of_others = {tuple(place) for place, weight in entries if weight > 0 and place[0] != client}
            wanted += [(simulation.round, client, peer, f"experts.{expert}") for peer, expert in of_others]
    table = pd.read_csv(tmp_path / FETCHES)
    assert list(table.columns) == ["round", "client", "peer", "what"]
    assert sorted(table.itertuples(index=False, name=None)) == sorted(wanted)
    assert set(table["round"]) == {2, 3, 4}


def test_without_fetches_there_is_no_file(tmp_path: Path) -> None:
    finished("fedavg", make_task(), observers=(Fetches(tmp_path / FETCHES),), folder=tmp_path / "state", rounds=1)
    assert not (tmp_path / FETCHES).exists()


def test_a_run_keeps_its_fetches_and_begins_anew_without_a_checkpoint(tmp_path: Path) -> None:
    task = fedexperts.Task.of(**DIGITS)
    fedexperts.run("fedmoe-da", task, out=tmp_path / "run", **QUICK)
    whole = (tmp_path / "run" / FETCHES).read_bytes()
    assert whole.count(b"\n") > 3
    fedexperts.load(tmp_path / "run")
    assert (tmp_path / "run" / FETCHES).read_bytes() == whole
    shutil.rmtree(tmp_path / "run" / "state")
    (tmp_path / "run" / "summary.json").unlink()
    fedexperts.resume(tmp_path / "run")
    assert (tmp_path / "run" / FETCHES).read_bytes() == whole


def test_a_table_goes_back_to_any_length_that_it_had(tmp_path: Path) -> None:
    table = GrowingTable(tmp_path / "table.csv", ("a", "b"))
    assert table.saved_length() == 0
    table.add([{"a": 1, "b": 2}])
    length = table.saved_length()
    assert length == len("a,b\r\n1,2\r\n")
    table.add([{"a": 3, "b": 4}])
    table.cut(length)
    table.add([{"a": 5, "b": 6}])
    assert (tmp_path / "table.csv").read_text().split() == ["a,b", "1,2", "5,6"]
    with pytest.raises(SavedStateError, match="is missing or cut off: the checkpoint knows 99 bytes of it"):
        table.cut(99)
    table.cut(0)
    assert not (tmp_path / "table.csv").exists()
