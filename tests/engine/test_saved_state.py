"""Checkpoints: what is written, what survives a crash, what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.engine import Simulation
from fedexperts.engine.store import Store
from fedexperts.errors import SavedStateError
from fedexperts.task import Task

TASK = make_task()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The state of a finished run of two rounds."""
    finished("fedmoe", TASK, folder=tmp_path / "state", rounds=2)
    return tmp_path / "state"


def reopened(folder: Path) -> Simulation:
    simulation = make_simulation("fedmoe", TASK, folder=folder, rounds=2)
    simulation.restore()
    return simulation


def test_a_restored_run_is_the_run(saved: Path) -> None:
    assert_same_bits(states(reopened(saved)), states(finished("fedmoe", TASK, rounds=2)))


def test_only_the_files_of_the_checkpoint_are_there(saved: Path) -> None:
    manifest = json.loads((saved / "checkpoint.json").read_text())
    named = {manifest["server"]["file"], *(record["file"] for record in manifest["clients"].values())}
    assert {path.name for path in saved.iterdir()} == named | {"checkpoint.json"}


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_checkpoint_writes_only_what_changed(tmp_path: Path, place: str) -> None:
    store = Store(place, torch.device("cpu"), tmp_path)
    for client in (1, 2):
        store.put(client, {"head.weight": torch.full((3,), float(client))})
    first = store.save()
    store.put(2, {"head.weight": torch.full((3,), 5.0)})
    second = store.save()
    assert first["1"] == second["1"]
    assert first["2"]["file"] != second["2"]["file"]
    assert (tmp_path / first["2"]["file"]).exists(), "the last checkpoint's files stay until the next one is complete"
    assert torch.equal(store.get(2)["head.weight"], torch.full((3,), 5.0))  # type: ignore[index]


def test_a_crash_while_saving_leaves_the_last_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = states(reopened(saved))
    simulation = reopened(saved)
    simulation.step()

    def crash(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("os.replace", crash)
        with pytest.raises(OSError, match="no space"):
            simulation.checkpoint()
    assert_same_bits(states(reopened(saved)), before)


def test_a_cut_off_file_is_named(saved: Path) -> None:
    victim = max(saved.glob("client-*.safetensors"), key=lambda path: path.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-100])
    with pytest.raises(SavedStateError, match=f"{victim.name} has .* bytes where the checkpoint says"):
        reopened(saved)


def test_a_damaged_file_is_named(saved: Path) -> None:
    victim = next(saved.glob("server*.safetensors"))
    raw = bytearray(victim.read_bytes())
    raw[-1] ^= 1
    victim.write_bytes(raw)
    with pytest.raises(SavedStateError, match=f"{victim.name} is damaged"):
        reopened(saved)


def test_a_missing_file_is_named(saved: Path) -> None:
    victim = next(saved.glob("client-*.safetensors"))
    victim.unlink()
    with pytest.raises(SavedStateError, match=victim.name):
        reopened(saved)


@pytest.mark.parametrize("content", ['{"format": 99, "round": 1}', "[]", '{"round": 3}'])
def test_a_checkpoint_of_another_version_is_refused(saved: Path, content: str) -> None:
    (saved / "checkpoint.json").write_text(content)
    with pytest.raises(SavedStateError, match="reads format 1"):
        reopened(saved)


def test_a_cut_off_manifest_is_refused(saved: Path) -> None:
    path = saved / "checkpoint.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(SavedStateError, match="cut off"):
        reopened(saved)


def test_other_settings_are_refused(saved: Path) -> None:
    simulation = make_simulation("fedmoe", TASK, folder=saved, rounds=2, lr=0.2)
    with pytest.raises(SavedStateError, match=r"other settings than it has now: lr was 0\.05; put them back"):
        simulation.restore()


def test_where_a_run_is_computed_may_change(saved: Path) -> None:
    simulation = make_simulation("fedmoe", TASK, folder=saved, rounds=2, executor="stacked", store="disk")
    simulation.restore()
    assert_same_bits(states(simulation), states(reopened(saved)))


def other_images() -> Task:
    return replace(TASK, dataset=replace(TASK.dataset, inputs=255 - TASK.dataset.inputs))


def other_labels() -> Task:
    return replace(TASK, dataset=replace(TASK.dataset, labels=3 - TASK.dataset.labels))


def other_owners() -> Task:
    return replace(TASK, clients=TASK.clients[::-1])


@pytest.mark.parametrize("other", [other_images, other_labels, other_owners])
def test_other_data_are_refused(saved: Path, other: Callable[[], Task]) -> None:
    simulation = make_simulation("fedmoe", other(), folder=saved, rounds=2)
    with pytest.raises(SavedStateError, match="fingerprint"):
        simulation.restore()
