"""Checkpoints: what is written, what survives a crash, what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.engine import Observer, Simulation
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


class Counting(Observer):
    def __init__(self, count: int) -> None:
        self.count = count

    def save(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore(self, saved: dict[str, Any]) -> None:
        self.count = saved["count"]


def test_observers_of_one_kind_each_have_their_own_state_back(tmp_path: Path) -> None:
    finished("fedmoe", TASK, folder=tmp_path / "state", rounds=2, observers=(Counting(1), Counting(2)))
    again = (Counting(0), Counting(0))
    make_simulation("fedmoe", TASK, folder=tmp_path / "state", rounds=2, observers=again).restore()
    assert [observer.count for observer in again] == [1, 2]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def named(folder: Path) -> dict[int, str]:
    """Every client's file, as the checkpoint's list has it."""
    clients = json.loads((folder / "checkpoint.json").read_text())["clients"]
    lines = (folder / clients["file"]).read_bytes()[: clients["bytes"]].splitlines()
    return {client: name for client, name, *_ in map(json.loads, lines)}


def test_only_the_files_of_the_checkpoint_are_there(saved: Path) -> None:
    manifest = json.loads((saved / "checkpoint.json").read_text())
    around = {"checkpoint.json", manifest["server"]["file"], manifest["clients"]["file"]}
    assert files(saved) == around | set(named(saved).values())


def test_files_of_rounds_after_the_checkpoint_go_when_the_run_is_resumed(saved: Path) -> None:
    before = files(saved)
    simulation = make_simulation("fedmoe", TASK, folder=saved, rounds=2, store="disk")
    simulation.restore()
    simulation.step()
    simulation.fleet.flush()
    assert files(saved) > before
    reopened(saved)
    assert files(saved) == before


def format_1(folder: Path) -> None:
    """The same checkpoint as the first version of this package wrote it."""
    manifest = json.loads((folder / "checkpoint.json").read_text())
    listed = folder / manifest["clients"]["file"]
    manifest |= {"format": 1, "clients": {}}
    for client, name, size, check in map(json.loads, listed.read_bytes().splitlines()):
        flat = f"client-{Path(name).name}"
        (folder / name).rename(folder / flat)
        manifest["clients"][str(client)] = {"file": flat, "bytes": size, "crc32": check}
    listed.unlink()
    (folder / "checkpoint.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_checkpoint_of_format_1_is_continued(saved: Path, place: str) -> None:
    values = {"rounds": 3, "store": place}
    expected = states(finished("fedmoe", TASK, **values))
    format_1(saved)
    manifest = json.loads((saved / "checkpoint.json").read_text())
    manifest["settings"]["rounds"] = 3
    (saved / "checkpoint.json").write_text(json.dumps(manifest))
    simulation = make_simulation("fedmoe", TASK, folder=saved, **values)
    simulation.restore()
    simulation.run()
    again = make_simulation("fedmoe", TASK, folder=saved, **values)
    again.restore()
    assert_same_bits(states(again), expected)


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
    victim = max(saved.glob("clients/*/*.safetensors"), key=lambda path: path.stat().st_size)
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


def test_a_clients_damaged_file_is_found_when_it_is_read(saved: Path) -> None:
    victim = saved / named(saved)[2]
    raw = bytearray(victim.read_bytes())
    raw[-1] ^= 1
    victim.write_bytes(raw)
    simulation = reopened(saved)  # which does not read what may never be needed
    simulation.client_state(1)
    with pytest.raises(SavedStateError, match=f"{victim.name} is damaged"):
        simulation.client_state(2)


def test_a_missing_file_is_named(saved: Path) -> None:
    victim = next(saved.glob("clients/*/*.safetensors"))
    victim.unlink()
    with pytest.raises(SavedStateError, match=victim.name):
        reopened(saved)


@pytest.mark.parametrize("content", ['{"format": 99, "round": 1}', "[]", '{"round": 3}'])
def test_a_checkpoint_of_another_version_is_refused(saved: Path, content: str) -> None:
    (saved / "checkpoint.json").write_text(content)
    with pytest.raises(SavedStateError, match="reads formats 1 and 2"):
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
