"""Flower as the carrier: a SuperLink and SuperNodes over TLS, and `flwr run` on the app that `federation new` writes.

They live in an environment of their own (`make flower`), since Flower wants older packages than ours.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import tomli_w
from consortium import PATIENCE

from fedexperts import api
from fedexperts.federation.certificates import AUTHORITY as BELIEVED
from fedexperts.federation.certificates import CERTIFICATE, KEY
from fedexperts.federation.demo import free_ports, process
from fedexperts.federation.places import RUNS, new
from fedexperts.measure import HISTORY, SUMMARY, Record
from fedexperts.measure.history import read_history

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-flower" / "bin"
REQUIRED = os.environ.get("FEDEXPERTS_FLOWER") == "required"
pytestmark = [
    pytest.mark.federation,
    pytest.mark.skipif(not BIN.exists() and not REQUIRED, reason="Flower's environment is not there: `make flower`"),
]
SITES = ("a", "b")
DATA = {"data": "digits", "samples": 160, "partition": "dirichlet", "alpha": 1.0}


class Flower:
    """Flower's processes for a federation; what they say is in files beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = free_ports(2 + 2 * len(SITES))
        self.address = f"localhost:{port + 1 + len(SITES)}"
        self.ports = range(port + 2 + len(SITES), port + 2 + 2 * len(SITES))
        self.town = folder / "town"
        new(self.town, SITES, "localhost", port)
        for part, site in enumerate(SITES):
            with open(self.town / site / "site.toml", "a", encoding="utf-8") as file:
                file.write(tomli_w.dumps({"data": {**DATA, "clients": len(SITES), "part": part}}))
        self._home("user")
        connection = {"address": self.address, "root-certificates": str(self.town / "server" / BELIEVED)}
        text = tomli_w.dumps({"superlink": {"default": "town", "town": connection}})
        (folder / "user" / "config.toml").write_text(text, encoding="utf-8")

    def _home(self, whose: str) -> dict[str, str]:
        """The settings of whoever it is: nothing of this machine's user is read or written."""
        (self.folder / whose).mkdir(exist_ok=True)
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        found = {"PYTHONPATH": str(ROOT / "src"), "FLWR_HOME": str(self.folder / whose), "PATH": path}
        return dict(os.environ) | quiet | found

    @contextmanager
    def alive(self) -> Iterator[None]:
        server = self.town / "server"
        host, _, port = self.address.partition(":")
        link = ["--ssl-ca-certfile", server / BELIEVED, "--ssl-certfile", server / CERTIFICATE]
        link += ["--ssl-keyfile", server / KEY, "--host", host, "--port", port, "--database", self.folder / "link.db"]
        with ExitStack() as stack:
            stack.enter_context(self._process("flower-superlink", *link, "--disable-runtime-dependency-installation"))
            self._listens(host, int(port))
            for site, own in zip(SITES, self.ports, strict=True):
                folder = self.town / site
                node = ["--superlink", self.address, "--root-certificates", folder / BELIEVED, "--port", own]
                config = f'folder="{folder}"'
                stack.enter_context(self._process("flower-supernode", *node, "--node-config", config, whose=site))
                stack.enter_context(process(folder, "node", folder))  # for the peers
            yield

    @contextmanager
    def _process(self, name: str, *words: object, whose: str = "link") -> Iterator[None]:
        with open(self.folder / f"{whose}.txt", "ab") as log:
            command = [str(BIN / name), *map(str, words)]
            running = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._home(whose), cwd=self.folder, start_new_session=True
            )
        try:
            yield
        finally:
            os.killpg(running.pid, signal.SIGKILL)  # with what it has started
            running.wait()

    def _listens(self, host: str, port: int) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return socket.create_connection((host, port)).close()
            except OSError:
                assert time.monotonic() < end, (self.folder / "link.txt").read_text()
                time.sleep(0.1)

    def run(self, method: str, rounds: int, options: Mapping[str, object]) -> Path:
        """`flwr run`, and the run's folder when it is over."""
        words = " ".join(f"--{name} {value}" for name, value in {**DATA, **options}.items())
        config = f'method="{method}" rounds={rounds} name="{method}" options="{words}"'
        command = [str(BIN / "flwr"), "run", str(self.town / "flower"), "--run-config", config]
        said = subprocess.run(command, env=self._home("user"), cwd=self.folder, capture_output=True, text=True)
        assert said.returncode == 0, said.stdout + said.stderr
        run, end = self.town / RUNS / method, time.monotonic() + PATIENCE
        while not (run / SUMMARY).exists():
            assert time.monotonic() < end, (self.folder / "link.txt").read_text()
            time.sleep(0.2)
        return run


def test_flwr_run_ends_where_the_simulation_ends(tmp_path: Path) -> None:
    flower = Flower(tmp_path)
    common = {"lr": 0.05, "batch-size": 16}
    with flower.alive():
        shared = flower.run("fedavg", 2, common)
        between_peers = flower.run("fedmoe-da", 2, common | {"experts": 2, "asked": 1, "start": "own"})
    for run in (shared, between_peers):
        assert read_history(run / HISTORY) == api.execute(Record.load(run).settings).record.rows
        assert not (run / "absences.csv").exists()
    assert Record.load(between_peers).totals["peer_bytes"] > 0
