"""Many clients, of whom ten are in a round: what grows with their number, and what does not.

python benchmarks/clients.py                        N = 100, 1,000, 10,000 with 20 kB of private parts each: 0.2 GB
python benchmarks/clients.py --full --folder DIR    with 2.6 MB each: 26 GB on disk for N = 10,000, gone afterwards
python benchmarks/clients.py --markdown FILE        the figures as a table too

Images are 8 × 8 noise, 14 of each client to train; the store is on disk. Every N has two processes of its own, so that
their memory is theirs alone: one that begins, with nobody on disk at first and everybody later, and one that resumes
what the first left. Of rounds and checkpoints the best of 15 is shown, on the clock and of the processor, as others may
use the machine too; the rest is measured once. "Private parts of everybody written" is a loop over all clients.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench import machine, shown

from fedexperts.config import Settings, TrainSettings
from fedexperts.data import Dataset
from fedexperts.engine import Simulation
from fedexperts.measure import HISTORY, STATE, History
from fedexperts.methods import method_class
from fedexperts.task import Task

COUNTS = (100, 1000, 10_000)
SAMPLED, EACH, TIMES = 10, 20, 15
METHODS = {False: "fedper", True: "fedmoe"}
"""With `--full` clients keep an extractor, a gate and a head; without it a head."""


class Laps:
    """Seconds by name: on the clock and, of what is repeated, of the processor, which does not count others' work."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        self.found[name] = time.perf_counter() - start
        return result

    def best(self, name: str, work: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> None:
        """The best of some times, each with something else `before` it."""
        clock, processor = [], []
        for _ in range(TIMES):
            before()
            start, used = time.perf_counter(), time.process_time()
            work()
            clock.append(time.perf_counter() - start)
            processor.append(time.process_time() - used)
        self.found |= {f"{name}, ms": min(clock), f"{name}, ms of the processor": min(processor)}


def task(clients: int) -> Task:
    rng = np.random.default_rng(0)
    inputs, labels = (
        rng.integers(0, 256, (2 * clients * EACH, 1, 8, 8), np.uint8),
        rng.integers(0, 10, 2 * clients * EACH),
    )
    dataset = Dataset("noise", inputs, labels, tuple(map(str, range(10))))
    return Task.of(dataset=dataset, clients=clients, samples_per_client=EACH, model="cnn3")


def simulation(made: Task, folder: Path, full: bool) -> Simulation:
    values = {"method": METHODS[full], "batch_size": 14, "rounds": 10**6, "participation": SAMPLED / len(made.clients)}
    engine = {"store": "disk", "device": "cpu", "evaluate_every": 10**6}
    settings = Settings.check(made.settings.model_dump() | values | engine)
    method = method_class(settings.method)(settings.part(TrainSettings))
    sim = Simulation(method, made, settings, (History(folder / HISTORY),), folder / STATE)
    for observer in sim.observers:
        observer.started(sim)
    return sim


def begins(clients: int, folder: Path, full: bool) -> dict[str, float]:
    laps = Laps()
    made = laps("data split, s", lambda: task(clients))
    sim = laps("start, s", lambda: simulation(made, folder, full))
    sim.step()
    laps.best("round", sim.step)
    laps("private parts of everybody written, s", lambda: everybody(sim))
    laps("checkpoint of everybody, s", sim.checkpoint)
    laps.best("round when everybody is on disk", sim.step)
    sim.checkpoint()
    laps.best("checkpoint", sim.checkpoint, before=sim.step)
    sim.executor.close()
    used = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return laps.found | {"on disk, MB": sum(used) / 1e6, "memory at most, MB": memory()}


def everybody(sim: Simulation) -> None:
    """As if every client had trained."""
    for client in sim.specs:
        sim.store.put(client, sim.fleet.kept(client))


def resumes(clients: int, folder: Path, full: bool) -> dict[str, float]:
    laps, made = Laps(), task(clients)
    sim = simulation(made, folder, full)
    laps("resume, s", sim.restore)
    sim.step()
    laps.best("round after that", sim.step)
    laps.found["memory at most until then, MB"] = memory()
    laps("everybody evaluated, s", sim.evaluate)
    sim.executor.close()
    return laps.found | {"memory at most with that, MB": memory()}


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


WORK = {"begins": begins, "resumes": resumes}


def measured(clients: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Both processes of a number of clients."""
    folder = Path(tempfile.mkdtemp(prefix="fedexperts-clients-", dir=arguments.folder))
    found: dict[str, float] = {}
    try:
        for work in WORK:
            command = [sys.executable, __file__, "--work", work, "--clients", str(clients), "--folder", str(folder)]
            done = subprocess.run(
                [*command, *["--full"] * arguments.full], stdout=subprocess.PIPE, text=True, check=True
            )
            found |= json.loads(done.stdout)
    finally:
        shutil.rmtree(folder)
    return {name: 1e3 * value if ", ms" in name else value for name, value in found.items()}


def table(found: dict[int, dict[str, float]]) -> str:
    lines = [["", *(f"N = {clients:,}" for clients in found)], ["---", *["--:"] * len(found)]]
    lines += [[name, *(shown(figures[name]) for figures in found.values())] for name in next(iter(found.values()))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="2.6 MB of private parts for each client")
    parser.add_argument("--clients", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--folder", type=Path, help="where the runs lie meanwhile (default: the system's for such)")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--commit", help="what to call the code, where git is not there to ask")
    parser.add_argument("--work", choices=WORK, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.work:
        print(json.dumps(WORK[arguments.work](arguments.clients[0], arguments.folder, arguments.full)))
        return
    about = " · ".join(f"{name} {value}" for name, value in machine("cpu", arguments.commit).items())
    print(about, flush=True)
    found: dict[int, dict[str, float]] = {}
    for clients in arguments.clients:
        found[clients] = measured(clients, arguments)
        print(f"\n{clients:,} clients, {SAMPLED} in a round, {METHODS[arguments.full]}")
        for name, value in found[clients].items():
            print(f"  {name:48} {shown(value):>12}", flush=True)
        if arguments.markdown:
            arguments.markdown.write_text(f"{about}\n\n{table(found)}", encoding="utf-8")


if __name__ == "__main__":
    main()
