"""A site opens a run before it trains in it: later, if it was away, and again, if it has lost its disk."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from neighbourhood import Neighbourhood, settings_for
from support import make_task

from fedexperts.errors import FederationError
from fedexperts.federation.board import STATUS, Board
from fedexperts.federation.envelope import Answer, Request, RequestHead, Task
from fedexperts.federation.places import new
from fedexperts.federation.vault import Vault
from fedexperts.methods import Message

TASK = make_task("cnn5/8", sizes=(20, 16, 12))


class Noted(Neighbourhood):
    """Remembers who was asked what, and by whom there was no answer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TASK)
        self.asked: list[tuple[Task, int, int]] = []
        self.away: set[int] = set()
        self.meddle = self._note

    def _note(self, client: int, request: bytes, answer: bytes) -> bytes | None:
        head = Request.from_bytes(request).head
        self.asked.append((head.task, head.round, client))
        return None if client in self.away else answer

    def of(self, task: Task) -> list[tuple[int, int]]:
        return [(number, client) for kind, number, client in self.asked if kind is task]


def test_who_was_away_at_first_opens_the_run_when_it_comes(tmp_path: Path) -> None:
    there = Noted(tmp_path)
    federation = there.coordinator(settings_for("fedmoe", TASK))
    there.away = {2}
    federation.step()
    assert there.of(Task.OPEN) == [(1, 0), (1, 1), (1, 2)]
    assert there.of(Task.TRAIN) == [(1, 0), (1, 1)]
    there.away = set()
    federation.step()
    assert there.of(Task.OPEN)[3:] == [(2, 2)]
    assert there.of(Task.TRAIN)[2:] == [(2, 0), (2, 1), (2, 2)]
    [row] = (tmp_path / "server" / "absences.csv").read_text().splitlines()[1:]
    assert row.startswith("1,2,site-2,open,no answer within")


def test_a_run_needs_its_minimum_to_open_too(tmp_path: Path) -> None:
    there = Noted(tmp_path)
    federation = there.coordinator(settings_for("fedmoe", TASK), minimum=3, attempts=2)
    there.away = {1}
    with pytest.raises(FederationError, match=r"round 1 has 2 replies after 2 attempts, 3 are needed \(site-1: no ans"):
        federation.step()
    assert there.of(Task.TRAIN) == []


def test_a_site_that_has_lost_its_disk_begins_anew(tmp_path: Path) -> None:
    there = Noted(tmp_path)
    federation = there.coordinator(settings_for("fedmoe", TASK))
    federation.step()
    shutil.rmtree(tmp_path / "site-1" / "state")
    federation.step()
    federation.step()
    assert there.of(Task.OPEN)[3:] == [(3, 1)]
    rows = (tmp_path / "server" / "absences.csv").read_text().splitlines()[1:]
    assert [row.split(",")[:4] for row in rows] == [["2", "1", "site-1", "train"], ["2", "1", "site-1", "close"]]
    assert all("run a-run is not open at this site" in row for row in rows)
    assert Vault(tmp_path / "site-1" / "state" / "a-run").trained == 3


def test_what_a_run_is_stays_once_something_is_trained_in_it(tmp_path: Path) -> None:
    """Another method in the same run would let a server have what was private in the first."""
    there = Noted(tmp_path)
    federation = there.coordinator(settings_for("fedper", TASK, rounds=1))
    planned = federation._meeting.plan(federation.specs[0])
    site, start = there.sites[0], Message(federation.start).to_bytes()

    def refusal(task: Task, number: int = 0, payload: bytes = start, **settings: object) -> str:
        plan = planned.model_copy(update={"settings": planned.settings | settings})
        request = Request(RequestHead(task=task, round=number, plan=plan), payload)
        return Answer.from_bytes(site.answer(request.to_bytes())).head.refused

    assert "is not open at this site" in refusal(Task.TRAIN, 1)
    assert refusal(Task.OPEN, lr=0.5) == ""  # until then it may change
    assert refusal(Task.OPEN) == ""
    federation.run()
    assert refusal(Task.OPEN) == ""
    other = Message({name: tensor + 1 for name, tensor in federation.start.items()}).to_bytes()
    assert "that was planned otherwise" in refusal(Task.OPEN, payload=other)
    for changes in ({"lr": 0.5}, {"method": "pm-moe", "options": {}}, {"method": "fedrep", "options": {}}):
        assert "planned otherwise" in refusal(Task.OPEN, **changes)
        assert "planned otherwise" in refusal(Task.TRAIN, 2, **changes)


@pytest.mark.parametrize(
    ("more", "says"),
    [({}, "is waited for"), ({"doing": "train", "in_round": 2}, "train, round 2"), ({"failed": "no room"}, "no room")],
)
def test_the_status_of_a_run_that_has_not_begun(
    more: dict[str, object], says: str, tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    new(tmp_path / "town", ("a", "b"), "localhost", 9440)
    board = Board(tmp_path / "town" / "server" / STATUS)
    board.note(seen={"a": 0.0}, run="first", method="fedavg", rounds=3, round=0, waiting=["a"], **more)
    code, out, _ = cli("federation", "status", tmp_path / "town")
    assert code == 0
    assert says in out
    assert ("waited" in out) == (not more)
