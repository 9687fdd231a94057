"""Real processes over TLS, and kill -9."""

import csv
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mortal import __file__ as MORTAL

from fedexperts import api
from fedexperts.federation.board import STATUS, Board
from fedexperts.federation.demo import free_ports
from fedexperts.federation.places import new
from fedexperts.federation.runs import queue
from fedexperts.federation.service import FAILED, follow
from fedexperts.measure import HISTORY, SUMMARY, Record
from fedexperts.measure.history import read_history

pytestmark = pytest.mark.federation
PATIENCE = 280
"""Seconds after which a federation that has not come to an end will not."""


class Consortium:
    """A server and sites as processes; one that dies is started again, as a service manager would do."""

    def __init__(self, folder: Path, sites: Sequence[str], **rules: Any) -> None:
        self.folder = folder
        self.sites = tuple(sites)
        self.data = {"data": "digits", "samples": 80 * len(sites), "partition": "dirichlet", "alpha": 1.0}
        new(folder, self.sites, "localhost", free_ports(1 + len(sites)), rules)
        self.deaths: list[str] = []
        self._living: dict[str, subprocess.Popen[bytes]] = {}
        self._mortal: dict[str, tuple[str, int]] = {}
        self._over = threading.Event()

    def will_die(self, member: str, point: str, after: int = 0) -> Path:
        """At that point, when it has been there so many times."""
        self._mortal[member] = (point, after)
        flag = self.folder / member / "dies"
        flag.touch()
        return flag

    @contextmanager
    def alive(self) -> Iterator[None]:
        keepers = [threading.Thread(target=self._keep, args=(name,)) for name in ("server", *self.sites)]
        for keeper in keepers:
            keeper.start()
        try:
            yield
        finally:
            self._over.set()
            for process in list(self._living.values()):
                process.kill()
            for keeper in keepers:
                keeper.join()

    def _keep(self, name: str) -> None:
        while not self._over.is_set():
            with open(self.folder / name / "log.txt", "ab") as log:
                environment = os.environ | {"OMP_NUM_THREADS": "1"}
                process = subprocess.Popen(self._command(name), stdout=log, stderr=log, env=environment)
            self._living[name] = process
            if self._over.is_set():
                process.kill()
            if process.wait() == -signal.SIGKILL and not self._over.is_set():
                self.deaths.append(name)

    def _command(self, name: str) -> list[str]:
        words: list[object] = ["server", self.folder]
        if name != "server":
            options = [word for key, value in self.data.items() for word in (f"--{key}", value)]
            part = self.sites.index(name)
            words = ["site", self.folder / name, "--part", part, "--clients", len(self.sites), *options]
        point, after = self._mortal.get(name, ("training", 0))  # without its flag nothing happens
        return [sys.executable, MORTAL, point, str(self.folder / name / "dies"), str(after), *map(str, words)]

    def kill(self, name: str) -> None:
        if (process := self._living.get(name)) is not None:
            process.kill()

    def run(self, method: str, **values: Any) -> Path:
        return queue(self.folder, method, {**self.data, **values}, None)

    def finished(self, run: Path) -> Record:
        end = time.monotonic() + PATIENCE
        for _ in follow(self.folder, run):
            assert time.monotonic() < end, f"no end after {PATIENCE} s; see the logs in {self.folder}"
        assert not (run / FAILED).exists(), (run / FAILED).read_text()
        return Record.load(run)

    def simulated(self, run: Path) -> Record:
        """The same without a network, and without deaths."""
        return api.execute(Record.load(run).settings).record


def absences(run: Path) -> list[dict[str, str]]:
    with open(run / "absences.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


SHORT = {"rounds": 4, "epochs": 1, "batch_size": 16, "lr": 0.1, "experts": 2, "asked": 1, "start": "own"}


def test_whoever_dies_comes_back_and_the_result_is_as_if_nobody_had(tmp_path: Path) -> None:
    """Deaths at five points; each step is done once, so all figures and bytes are those of the simulation."""
    town = Consortium(tmp_path / "town", ("a", "b", "c"), deadline=100, minimum=3)
    flags = [
        town.will_die("a", "training", after=7),
        town.will_die("b", "kept", after=3),
        town.will_die("c", "half-kept", after=2),
        town.will_die("server", "taking", after=4),
    ]
    with town.alive():
        run = town.run("fedmoe-da", **SHORT)
        record = town.finished(run)
    assert sorted(town.deaths) == ["a", "b", "c", "server"]
    assert not any(flag.exists() for flag in flags)
    assert read_history(run / HISTORY) == town.simulated(run).rows
    assert not (run / "absences.csv").exists()
    assert record.totals["peer_bytes"] > 0


def test_a_server_that_dies_before_it_has_saved_a_round_makes_it_again(tmp_path: Path) -> None:
    town = Consortium(tmp_path / "town", ("a", "b"), deadline=100, minimum=2)
    town.will_die("server", "complete", after=2)
    with town.alive():
        run = town.run("fedmoe", **{"rounds": 4, "batch_size": 16})
        town.finished(run)
    assert town.deaths == ["server"]
    assert read_history(run / HISTORY) == town.simulated(run).rows


def test_who_dies_while_it_serves_or_is_slow_is_done_without_and_takes_part_again(tmp_path: Path) -> None:
    town = Consortium(tmp_path / "town", ("a", "b", "c"), deadline=6, minimum=2)
    town.will_die("a", "serving", after=1)
    town.will_die("b", "slow", after=12)
    with town.alive():
        run = town.run("fedmoe-da", **SHORT | {"rounds": 12})
        town.finished(run)
    assert town.deaths == ["a"]
    missing = absences(run)
    assert {row["site"] for row in missing} >= {"b"}
    assert all("no answer within 6 s" in row["why"] or "old one" in row["why"] for row in missing), missing
    last = [row for row in read_history(run / HISTORY) if row["round"] == 12]
    assert [row["client"] for row in last if row["train_loss"] is not None] == [0, 1, 2]


def test_a_site_whose_disk_is_full_says_so_and_is_done_without(tmp_path: Path) -> None:
    town = Consortium(tmp_path / "town", ("a", "b", "c"), deadline=100, minimum=2)
    town.will_die("b", "full", after=2)  # rounds 1 and 2 are kept
    with town.alive():
        run = town.run("fedmoe", **{"rounds": 4, "batch_size": 16, "evaluate_every": 4})
        town.finished(run)
    assert not town.deaths
    [missing] = absences(run)
    assert (missing["round"], missing["site"], missing["task"]) == ("3", "b", "train")
    assert "File too large" in missing["why"]
    trained = [(row["round"], row["client"]) for row in read_history(run / HISTORY) if row["train_loss"] is not None]
    assert trained == [(number, k) for number in (1, 2, 3, 4) for k in (0, 1, 2) if (number, k) != (3, 1)]


def test_chaos(tmp_path: Path) -> None:
    """Five sites, 20 rounds; whenever two more are complete somebody is killed, at some moment of the next."""
    town = Consortium(tmp_path / "town", ("a", "b", "c", "d", "e"), deadline=20, minimum=3, attempts=10)
    rng, over = random.Random(0), threading.Event()

    def havoc() -> None:
        last = 0
        while not over.wait(0.05):
            if (now := Board.read(town.folder / "server" / STATUS).get("round", 0)) > last + 1:
                over.wait(rng.uniform(0, 0.5))
                town.kill(rng.choice(["server", *town.sites]))
                last = now

    with town.alive():
        run = town.run("fedmoe", **{"rounds": 20, "batch_size": 16, "lr": 0.1, "epochs": 2})
        thread = threading.Thread(target=havoc)
        thread.start()
        try:
            disturbed = town.finished(run)
        finally:
            over.set()
            thread.join()
    assert (run / SUMMARY).exists()
    assert len(town.deaths) > 3
    undisturbed = town.simulated(run)
    accuracy = [record.figures["last"].mean for record in (disturbed, undisturbed)]
    assert abs(accuracy[0] - accuracy[1]) < 0.05, (accuracy, town.deaths)
    for site in town.sites:
        [manifest] = (town.folder / site / "state").glob("*/site.json")
        assert manifest.stat().st_size > 0
