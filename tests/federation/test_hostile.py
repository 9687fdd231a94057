"""Hostile members and strangers, as real processes over TLS: each is refused with a clear line, and the run goes on."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from consortium import PATIENCE, Consortium, absences, until
from liar import FIRST, LIES, NOT_THE_LAST_WORD, OTHER_BYTES, SILENCE, STOLEN
from neighbourhood import Neighbourhood

from fedexperts.config import Settings, TaskSettings
from fedexperts.errors import UnreachableError
from fedexperts.federation.certificates import AUTHORITY, issue, make_authority
from fedexperts.federation.demo import process
from fedexperts.federation.envelope import Request, Shelf
from fedexperts.measure import HISTORY, SETTINGS
from fedexperts.measure.history import read_history
from fedexperts.task import Task as LearningTask

pytestmark = pytest.mark.federation

REASONS = {
    "no numbers": r"\S+ has values that are no numbers, or beyond",
    "other shapes": r"\S+ is float32 of shape .* where float32 of shape .* is expected",
    "huge": r"a reply of 40,.* bytes where at most .* are expected",
    "an enormous norm": r"its change has norm .*, more than 10 times that of what it was sent",
    "an old round": r"it answers to train, run fedavg-001, round 1 where it was asked train, run fedavg-001, round \d+",
    "cut off": r"\d+ bytes are not a message",
    "another run": r"it answers to train, run another, round \d+ where it was asked train, run fedavg-001",
    "nothing": r"an envelope of 0 bytes is cut off, or is none",
    "tested on nothing": r"the head of an envelope cannot be read: scores.test_samples",
    "better than perfect": r"the head of an envelope cannot be read: scores .*more samples are right than there are",
    "fetched from nobody": r"it says that it has fetched from client 99, whom nobody named to it",
}


class Honest(Neighbourhood):
    """The same sites without processes and without lies: what the liar says then does not come, or is away."""

    def __init__(self, folder: Path, run: Path) -> None:
        self.settings = Settings.saved(run / SETTINGS)
        super().__init__(folder, LearningTask.of(self.settings.part(TaskSettings)))

    def rows(self, heard: Callable[[int, Request], bool] = lambda client, request: True) -> list[dict[str, object]]:
        self.meddle = lambda client, raw, answer: answer if heard(client, Request.from_bytes(raw)) else None
        self.coordinator(self.settings, minimum=2).run()
        return read_history(self.folder / "server" / HISTORY)


def test_a_site_that_lies_in_every_way_is_refused_each_time_and_strangers_are_not_let_in(tmp_path: Path) -> None:
    town = Consortium(tmp_path / "town", ("a", "b", "c"), deadline=2 * PATIENCE, minimum=2)
    town.will_lie("b", "server")
    intruders = {
        "stranger": (town.folder / "authority", "stranger", 365),
        "old": (town.folder / "authority", "b", -1),
        "foreign": (tmp_path / "elsewhere", "b", 365),
    }
    make_authority(tmp_path / "elsewhere", "elsewhere")
    for folder, (authority, name, days) in intruders.items():
        issue(authority, tmp_path / folder, name, days)
        shutil.copy(town.folder / "authority" / AUTHORITY, tmp_path / folder)  # they believe the server, not it them
        own = re.sub("^listen.*", 'listen = "localhost:0"', (town.folder / "b" / "site.toml").read_text(), flags=re.M)
        (tmp_path / folder / "site.toml").write_text(own)
    said = {
        "stranger": r"server at \S+: 'stranger' is not on the list of members here",
        "old": r"server at \S+: .*; the certificate in \S+ ended on \d{4}-\d\d-\d\d",
        "foreign": r"server at \S+: .* Socket closed; so does who does not believe the certificate in \S+: its log",
    }
    with town.alive():
        run = town.run("fedavg", rounds=NOT_THE_LAST_WORD, batch_size=16, lr=0.05)
        for folder in intruders:
            with process(tmp_path / folder, "site", tmp_path / folder, "--data", "digits") as there:
                until(said[folder], tmp_path / folder / "log.txt", lambda there=there: there.poll() is None)
        town.finished(run)
    warned = rf"the certificate in {tmp_path / 'old'} ended on .*: `fedexperts federation renew` makes a new one"
    assert re.search(warned, (tmp_path / "old" / "log.txt").read_text())
    for line in (
        "refused: 'stranger' is not a member",
        "CERTIFICATE_VERIFY_FAILED: certificate has expired",
        "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate",
    ):
        assert line in town.log("server")
    assert not town.deaths

    rows = absences(run)
    assert [(row["round"], row["site"], row["task"]) for row in rows] == [
        (str(number), "b", str(task)) for number, (task, _) in enumerate(LIES.values(), FIRST)
    ]
    for kind, row in zip(LIES, rows, strict=True):
        assert re.search(REASONS[kind], row["why"]), (kind, row["why"])
        assert f"round {row['round']}, {row['task']}: without b: {row['why']}" in town.log("server")

    lies = dict(enumerate((task for task, _ in LIES.values()), FIRST))
    alone = Honest(tmp_path / "honest", run).rows(
        lambda client, asked: client != 1 or lies.get(asked.head.round) is not asked.head.task
    )
    assert read_history(run / HISTORY) == alone


def test_a_peer_that_lies_or_is_silent_is_done_without_and_gets_nothing_that_it_should_not(tmp_path: Path) -> None:
    town = Consortium(tmp_path / "town", ("a", "b", "c"), deadline=2 * PATIENCE, minimum=3)
    town.will_lie("b", "peers")
    for site in ("a", "c"):
        with open(town.folder / site / "site.toml", "a", encoding="utf-8") as file:
            file.write("[exchange]\nseconds = 8\n")  # long for the honest, and for the silent one only once
    with town.alive():
        run = town.run("fedmoe-da", rounds=4, batch_size=16, lr=0.1, experts=2, asked=2, start="own")
        town.finished(run)
    assert not town.deaths
    assert not (run / "absences.csv").exists()
    assert not (town.folder / "b" / STOLEN).exists()
    for site in ("a", "c"):
        log = town.log(site)
        assert re.search(
            rf"round {OTHER_BYTES}: experts\.\d of client 1: its bytes are not those that the peer ann", log
        )
        assert re.search(rf"round {SILENCE}: without client 1: b at \S+: Deadline Exceeded", log)
        assert log.count("refused, to b: a request for nothing that there can be") > 1

    class WithoutThose(Honest):
        def fetch(self, shelf: Shelf, run: str, what: str) -> bytes:
            if shelf.site == "site-1" and int(shelf.version[:6]) in (OTHER_BYTES, SILENCE):
                raise UnreachableError("nothing of use comes")
            return super().fetch(shelf, run, what)

    assert read_history(run / HISTORY) == WithoutThose(tmp_path / "honest", run).rows()
