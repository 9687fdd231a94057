"""Every registered method at the same setting: its round against a plain loop, and against what one model reaches.

python benchmarks/methods.py --markdown FILE              on the GPU if there is one, else on the CPU, smaller
python benchmarks/methods.py --model resnet18             on a GPU this is the second of two tables
python benchmarks/methods.py --only fedavg,fedmoe

A round: all clients train an epoch and are evaluated. The plain loop is the same method with `--executor loop
--no-graphs`: one client after another; a fifth of the clients train there, whose time counts five times, as clients are
alike. One model's limit is what a single model's training over the same images, in batches of all clients' batches
together, does in FLOPs per second; a method's share of it is over its training alone.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plain
import torch
from bench import BATCH, LR, TRAIN, arithmetic, clear, images, machine, network, seconds, simulation

from fedexperts.engine import Simulation
from fedexperts.engine.cohort import Job
from fedexperts.engine.phases import Profile, Spent
from fedexperts.measure import FlopMeter
from fedexperts.methods import Reply, Round, method_class, registry
from fedexperts.task import Task

HEADING = (
    "method", "executor", "first round, s", "round, ms", "plain loop, ms", "ratio", "share of the limit", "time",
)  # fmt: skip


class Size(NamedTuple):
    """Of a table's setting."""

    clients: int
    images: int
    precision: str


USUAL = {"cnn-da": Size(50, TRAIN, "float32"), "resnet18": Size(5, 100, "tf32")}
ON_A_CPU = {"cnn-da": Size(10, 100, "float32")}
NOTED = 0.1
"""Phases with at least so much of a round are named."""
PART = 5
"""One in so many clients trains in the plain loop."""


class Counted(FlopMeter):
    """The FLOPs of the last round, of all clients."""

    total = 0

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        self.total = sum(self.present.values())
        super().ended(round_number, losses)


class Fewer(Simulation):
    """The same clients train in every round, one in five, but where the method wants all; it knows how long they do."""

    others = 0.0  # seconds that the training of the other clients would have taken, in the last round

    def sample(self, round_number: int) -> list[int]:
        return super().sample(round_number)[:: 1 if self.method.everyone(self.now(round_number)) else PART]

    def train(self, clients: Sequence[int], now: Round) -> tuple[list[Job], list[Reply]]:
        start = time.perf_counter()
        done = super().train(clients, now)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.others = (time.perf_counter() - start) * (len(self.specs) / len(clients) - 1)
        return done


@dataclass
class Setting:
    """What all methods have in common here."""

    task: Task
    model: str
    device: str
    precision: str
    batch: int
    limit: float = field(init=False)  # FLOPs per second

    def __post_init__(self) -> None:
        samples = np.concatenate([client.train for client in self.task.clients])
        inputs, labels = torch.from_numpy(self.task.dataset.inputs), torch.from_numpy(self.task.dataset.labels)
        index = torch.from_numpy(samples)
        batch = len(self.task.clients) * self.batch
        loop = self.plain_loop("fedavg")
        with arithmetic(self.simulation("fedavg")):  # what a graph computes with is settled when it is captured
            model = network(self.model, self.device)
            one = plain.one_model(model, inputs[index].to(self.device), labels[index].to(self.device), batch, LR)
            self.limit = loop.flops / seconds(one)

    def simulation(self, method: str, **values: Any) -> Simulation:
        common = {"device": self.device, "precision": self.precision, "batch_size": self.batch}
        common["store"] = "device" if self.on_gpu else "memory"
        shared = "shared_model" in method_class(method).Options.model_fields
        return simulation(method, self.task, {"shared_model": self.model} if shared else {}, **(common | values))

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def plain_loop(self, method: str) -> "Loop":
        sim = self.simulation(method, kind=Fewer, executor="loop", graphs=False, evaluate_every=10**6)
        assert isinstance(sim, Fewer)
        meter = Counted(sim)
        sim.observers = (*sim.observers, meter)
        some = seconds(sim.step, warm_up=2, times=1)  # the first are special: PM-MoE's makes the pool
        evaluation = seconds(sim.evaluate, warm_up=1, times=1)
        sim.executor.close()
        return Loop(some + sim.others + evaluation, meter.total * len(sim.specs) / len(sim.sample(sim.round)))


class Loop(NamedTuple):
    """A round of the plain loop."""

    seconds: float
    flops: float


def measured(method: str, setting: Setting) -> list[str]:
    """A line of the table."""
    sim = setting.simulation(method)
    first = seconds(sim.step, warm_up=0, times=1)
    ours = seconds(sim.step, warm_up=3 if setting.on_gpu else 1)
    evaluation = seconds(sim.evaluate, warm_up=1, times=3)
    with Profile(sim.device, 3, None) as profile:
        for _ in range(3):
            sim.step()
            profile.ended()
    said = sim.executor.said
    sim.executor.close()
    del sim
    theirs, flops = setting.plain_loop(method)
    share = flops / setting.limit / max(ours - evaluation, 1e-9)
    clear()
    times = [f"{first:.1f}", f"{1e3 * ours:.1f}", f"{1e3 * theirs:,.0f}", f"{theirs / ours:.1f}", f"{share:.2f}"]
    return [method, said, *times, in_words(profile.spent)]


def in_words(spent: Spent) -> str:
    """The phases that matter, the largest first; on a GPU by its own clock."""
    times = spent.device or spent.host
    whole = sum(times.values()) or 1
    parts = sorted(((time / whole, name) for name, time in times.items() if time >= NOTED * whole), reverse=True)
    return ", ".join(f"{name} {100 * part:.0f} %" for part, name in parts)


def table(setting: Setting, methods: Sequence[str]) -> Iterator[str]:
    """One method measured after another: each is printed, and the table is given as far as it is there."""
    clients, train = setting.task.settings.clients, len(setting.task.clients[0].train)
    title = f"{clients} clients × {train} images, {setting.model}, batch {setting.batch}, {setting.precision}"
    print("", title, " | ".join(HEADING), sep="\n")
    lines: list[Sequence[str]] = [HEADING, ("---", "---", *["--:"] * 5, "---")]
    for method in methods:
        lines.append(measured(method, setting))
        print(" | ".join(lines[-1]), flush=True)
        yield "\n".join([f"### {title}", "", *("| " + " | ".join(line) + " |" for line in lines)])


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--model", help="with commas; the filters' widths are 6 and 16 in cnn-da, 32 and 64 in cnn-pm")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--images", type=int, help="of each client, to train")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--precision")
    parser.add_argument("--only", help="these methods, with commas")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--commit", help="what to call the code, where git is not there to ask")
    given = parser.parse_args()
    usual = USUAL if given.device.startswith("cuda") else ON_A_CPU
    methods = given.only.split(",") if given.only else list(registry())
    written = [" · ".join(f"{name} {value}" for name, value in machine(given.device, given.commit).items())]
    print(*written)
    for model in given.model.split(",") if given.model else usual:
        known = usual.get(model, usual["cnn-da"])
        task = images(given.clients or known.clients, model, given.images or known.images)
        written.append("")
        setting = Setting(task, model, given.device, given.precision or known.precision, given.batch)
        for text in table(setting, methods):
            written[-1] = text
            if given.markdown:
                given.markdown.write_text("\n\n".join(written) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
