"""What a round, a checkpoint and a resumption cost depends on the clients that take part, not on how many there are."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from support import make_simulation, make_task

from fedexperts.engine import Simulation
from fedexperts.engine.index import SLACK, Index
from fedexperts.engine.saved import Record
from fedexperts.engine.store import Store
from fedexperts.errors import SavedStateError
from fedexperts.methods import State, method_class
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

MANY = 2000


class Watched(method_class("fedmoe")):  # type: ignore[misc]
    """FedMoE that knows whose model was built."""

    name = "fedmoe"
    built: ClassVar[set[int]] = set()

    def parts(self, client: ClientSpec) -> Parts:
        self.built.add(client.id)
        return super().parts(client)  # type: ignore[no-any-return]


class Counting(Store):
    """A store that knows who was asked for and who was brought."""

    def __init__(self, *place: object) -> None:
        super().__init__(*place)  # type: ignore[arg-type]
        self.got: set[int] = set()
        self.was_put: set[int] = set()

    def get(self, client: int) -> State | None:
        self.got.add(client)
        return super().get(client)

    def put(self, client: int, tensors: State) -> None:
        self.was_put.add(client)
        super().put(client, tensors)


def many(folder: Path) -> tuple[Simulation, Counting]:
    values = {"participation": 4 / MANY, "rounds": 100, "evaluate_every": 100, "store": "disk"}
    simulation = make_simulation(Watched, make_task(sizes=(4,) * MANY), folder=folder, **values)
    store = Counting("disk", simulation.device, folder)
    simulation.store = simulation.fleet.store = store
    return simulation, store


def test_a_round_touches_only_the_sampled_clients(tmp_path: Path) -> None:
    Watched.built.clear()
    simulation, store = many(tmp_path)
    assert len(Watched.built) <= 2, "one of each model, to see that they fit the method"
    sampled: set[int] = set()
    for number in (1, 2, 3):
        sampled |= set(simulation.sample(number))
        simulation.step()
    simulation.checkpoint()
    assert Watched.built - {0, 1} == sampled - {0, 1}
    assert store.got == store.was_put == sampled
    assert len(list(tmp_path.glob("clients/*/*"))) == len(sampled)

    Watched.built.clear()
    again, store = many(tmp_path)
    again.restore()
    assert not store.got
    assert len(Watched.built) <= 2
    again.step()
    assert store.got == set(again.sample(4))


def contents(folder: Path) -> Mapping[str, tuple[int, int]]:
    """Every file below, with what changes when it is written."""
    found = {str(path.relative_to(folder)): path.stat() for path in folder.rglob("*") if path.is_file()}
    return {name: (at.st_ino, at.st_mtime_ns) for name, at in found.items()}


class Saving:
    """A store and its list, as a run has them."""

    def __init__(self, folder: Path, place: str = "disk", named: Record | None = None) -> None:
        self.store, self.index = Store(place, torch.device("cpu"), folder), Index(folder)
        if named is not None:
            self.store.load(self.index.read(named))
            self.index.clear()

    def put(self, client: int, version: int) -> None:
        self.store.put(client, {"head.weight": torch.tensor([client, version])})

    def begin(self) -> Record:
        return self.index.extended(self.store.save())

    def complete(self) -> Record:
        named = self.begin()
        self.index.settle()
        self.store.saved()
        return named

    def has(self, client: int, version: int) -> bool:
        tensors = self.store.get(client)
        return tensors is not None and tensors["head.weight"].tolist() == [client, version]


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_checkpoint_writes_only_what_changed(tmp_path: Path, place: str) -> None:
    saving = Saving(tmp_path, place)
    for client in (*range(0, 60, 3), 1234):
        saving.put(client, 1)
    first = saving.complete()
    before = contents(tmp_path)
    for client in (3, 1234):
        saving.put(client, 2)
    second = saving.begin()
    during = contents(tmp_path)
    new = {"clients/000/00003.2.safetensors", "clients/001/01234.2.safetensors"}
    assert {name for name in during if before.get(name) != during[name]} == new | {second["file"]}
    assert before.keys() <= during.keys(), "the last checkpoint's files stay until the next one is complete"
    assert second["bytes"] - first["bytes"] < 200, "two lines more"
    saving.complete()
    assert len(contents(tmp_path)) == len(before)
    resumed = Saving(tmp_path, place, second)
    assert all(resumed.has(client, version) for client, version in ((0, 1), (3, 2), (1234, 2)))


def test_a_checkpoint_that_was_never_completed_is_as_if_it_had_not_been(tmp_path: Path) -> None:
    saving = Saving(tmp_path)
    for client in range(3):
        saving.put(client, 1)
    complete = saving.complete()
    before = contents(tmp_path)
    saving.put(1, 2)
    saving.begin()

    resumed = Saving(tmp_path, named=complete)
    assert contents(tmp_path).keys() == before.keys()
    assert resumed.has(1, 1)
    resumed.put(2, 2)
    again = Saving(tmp_path, named=resumed.complete())
    assert again.has(1, 1)
    assert again.has(2, 2)


def test_the_list_of_files_does_not_grow_for_ever(tmp_path: Path) -> None:
    saving = Saving(tmp_path)
    for version in range(1, 2 * SLACK):
        saving.put(version % 2, version)
        named = saving.complete()
    [listed] = tmp_path.glob("*.jsonl")
    assert len(listed.read_text().splitlines()) <= SLACK + 2 * 2
    assert len(list(tmp_path.glob("clients/*/*"))) == 2
    assert Saving(tmp_path, named=named).has(1, 2 * SLACK - 1)


def test_a_cut_off_list_of_files_is_named(tmp_path: Path) -> None:
    saving = Saving(tmp_path)
    saving.put(0, 1)
    named = saving.complete()
    (tmp_path / named["file"]).write_bytes(b"[0")
    with pytest.raises(SavedStateError, match=r"clients\.1\.jsonl has 2 bytes where"):
        Saving(tmp_path, named=named)
