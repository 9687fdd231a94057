"""A federation of real processes over TLS, for tests: one that dies is started again."""

import csv
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from liar import __file__ as LIAR
from mortal import __file__ as MORTAL

from fedexperts import api
from fedexperts.federation.demo import free_ports
from fedexperts.federation.places import new
from fedexperts.federation.runs import queue
from fedexperts.federation.service import FAILED, follow
from fedexperts.measure import Record

PATIENCE = 400
"""Seconds after which a federation that has not come to an end will not."""


def until(says: str, log: Path, alive: Callable[[], bool] = lambda: True) -> None:
    """Wait for a line that must come; how long it takes does not matter."""
    end = time.monotonic() + PATIENCE
    while not (log.exists() and re.search(says, log.read_text(encoding="utf-8"))):
        assert alive(), log.read_text(encoding="utf-8")
        assert time.monotonic() < end, f"{log} has no {says} after {PATIENCE} s"
        time.sleep(0.1)


class Consortium:
    """A server and sites as processes; one that dies is started again, as a service manager would do."""

    def __init__(self, folder: Path, sites: Sequence[str], **rules: Any) -> None:
        self.folder = folder
        self.sites = tuple(sites)
        self.data = {"data": "digits", "samples": 80 * len(sites), "partition": "dirichlet", "alpha": 1.0}
        new(folder, self.sites, "localhost", free_ports(1 + len(sites)), rules)
        self.deaths: list[str] = []
        self._living: dict[str, subprocess.Popen[bytes]] = {}
        self._scripts: dict[str, list[str]] = {}
        self._over = threading.Event()

    def will_die(self, member: str, point: str, after: int = 0) -> Path:
        """At that point, when it has been there so many times."""
        flag = self.folder / member / "dies"
        flag.touch()
        self._scripts[member] = [MORTAL, point, str(flag), str(after)]
        return flag

    def will_lie(self, member: str, whom: str) -> None:
        self._scripts[member] = [LIAR, whom]

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
        return [sys.executable, *self._scripts.get(name, ["-m", "fedexperts.cli"]), *map(str, words)]

    def options(self, name: str) -> list[str]:
        """What a site's command says of its data and model."""
        words = self._command(name)
        return words[words.index("site") + 2 :]

    def kill(self, name: str) -> None:
        if (process := self._living.get(name)) is not None:
            process.kill()

    def log(self, name: str) -> str:
        return (self.folder / name / "log.txt").read_text(encoding="utf-8")

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
