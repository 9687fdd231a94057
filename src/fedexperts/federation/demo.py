"""A whole federation on one machine: a server and three sites as processes, started and stopped together."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedexperts.federation.places import new

SITES = ("hospital-a", "hospital-b", "hospital-c")
DATA = {"data": "digits", "clients": len(SITES), "partition": "dirichlet", "alpha": 0.5}


@contextmanager
def started(folder: Path) -> Iterator[dict[str, object]]:
    """Processes that live as long as the block; which data they have among them."""
    new(folder, SITES, "localhost", free_ports(1 + len(SITES)))
    options = [word for name, value in DATA.items() for word in (f"--{name}", str(value))]
    with ExitStack() as stack:
        stack.enter_context(process(folder / "server", "server", folder))
        for part, name in enumerate(SITES):
            stack.enter_context(process(folder / name, "site", folder / name, "--part", part, *options))
        yield dict(DATA)


@contextmanager
def process(folder: Path, *words: object) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours as a process of its own; what it logs is in its folder."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(folder / "log.txt", "ab") as log:
        command = [sys.executable, "-m", "fedexperts.cli", *map(str, words)]
        running = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody uses now."""
    for first in range(20_000 + os.getpid() % 20_000, 60_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
            return first
    raise OSError("no free ports")
