"""`make bench`: how fast, as ratios within one run on one machine. Nothing here is asserted.

python benchmarks/bench.py                     what the machine can do: GPU figures on a GPU, CPU figures on a CPU
python benchmarks/bench.py --markdown FILE     the figures as tables too
"""

import argparse
import gc
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import plain
import torch
from torch import nn

from fedexperts.config import Settings, TaskSettings, TrainSettings
from fedexperts.data import ClientData, Dataset
from fedexperts.engine import Simulation
from fedexperts.engine.executors import numerics
from fedexperts.engine.fit import autocast
from fedexperts.environment import environment
from fedexperts.methods import Model, method_class
from fedexperts.models import build
from fedexperts.task import Task

Figures = Mapping[str, float | str]
Parts = Mapping[str, Callable[[], Figures]]
"""What is measured: title → work that gives figures by name."""
BATCH, TRAIN, TEST, VALIDATION, LR = 50, 500, 100, 50, 0.01


def images(clients: int, model: str, train: int = TRAIN, test: int = TEST, validation: int = VALIDATION) -> Task:
    """CIFAR-sized noise: 500 images to train, 100 to test and 50 to validate for each client."""
    each = train + test + validation
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (min(clients, 200) * each, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, len(inputs))
    dataset = Dataset("noise", inputs, labels, tuple(map(str, range(10))))
    owned = np.arange(clients * each).reshape(clients, each) % len(inputs)
    split = [ClientData(o[:train], o[train + test :], o[train : train + test]) for o in owned]
    return Task(TaskSettings.check({"clients": clients, "model": model}), dataset, tuple(split))


def simulation(
    method: str,
    task: Task,
    options: Mapping[str, Any] | None = None,
    kind: type[Simulation] = Simulation,
    **values: Any,
) -> Simulation:
    settings = Settings.check(
        task.settings.model_dump() | {"method": method, "batch_size": BATCH, "lr": LR, "rounds": 10**6} | values
    )
    return kind(method_class(method)(settings.part(TrainSettings), options), task, settings)


def clear() -> None:
    """A simulation that is over is a circle, and memory of the GPU with it: nothing of the last one is counted."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def seconds(work: Callable[[], object], warm_up: int = 3, times: int = 5) -> float:
    """Median time of one call."""

    def once() -> float:
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(warm_up):
        once()
    return statistics.median(once() for _ in range(times))


def plain_cnn(model: str, device: str, clients: int, **values: Any) -> dict[str, float]:
    """FedAvg, every client training and evaluated in each round."""
    task = images(clients, model)
    found: dict[str, float] = {}
    sim = simulation("fedavg", task, device=device, **values)
    start = time.perf_counter()
    sim.step()
    found["first round, s"] = time.perf_counter() - start
    found["our round, ms"] = 1e3 * seconds(sim.step)
    evaluation = 1e3 * seconds(sim.evaluate)
    sim.executor.close()
    found["  of which evaluation, ms"] = evaluation
    training = (found["our round, ms"] - evaluation) / 1e3
    found["our samples/s in training"] = clients * TRAIN / training

    inputs, labels = torch.from_numpy(task.dataset.inputs), torch.from_numpy(task.dataset.labels)
    train = torch.from_numpy(np.concatenate([client.train for client in task.clients]))
    with arithmetic(sim):
        loop = plain.with_loaders(network(model, device), inputs, labels, task.clients, BATCH, LR, device)
        found["plain loop with DataLoaders, ms"] = 1e3 * seconds(loop, warm_up=1, times=3)
        one = plain.one_model(
            network(model, device), inputs[train].to(device), labels[train].to(device), clients * BATCH, LR
        )
        found["one model's samples/s"] = len(train) / seconds(one)
    found["ratio to the plain loop"] = found["plain loop with DataLoaders, ms"] / found["our round, ms"]
    found["share of the one-model limit"] = found["our samples/s in training"] / found["one model's samples/s"]
    return found


@contextmanager
def arithmetic(sim: Simulation) -> Iterator[None]:
    """Plain loops and the limit compute as precisely as the simulation within it; cuDNN need not repeat its bits."""
    precision = sim.settings.precision
    free = torch.backends.cudnn.flags(enabled=True, deterministic=False, allow_tf32=precision != "float32")
    with numerics(precision), free, autocast(sim.device, precision):
        yield


def network(model: str, device: str) -> nn.Module:
    return nn.Sequential(*build(model, (3, 32, 32), 10).values()).to(device)


def fedmoe(device: str, clients: int, **values: Any) -> dict[str, float]:
    """FedMoE with five different CNNs against a plain loop that has its data on the device."""
    task = images(clients, "heterogeneous")
    sim = simulation("fedmoe", task, device=device, **values)
    found: dict[str, float] = {}
    start = time.perf_counter()
    sim.step()
    found["first round, s"] = time.perf_counter() - start
    found["our round, ms"] = 1e3 * seconds(sim.step)
    models = [Model(sim.method.parts(spec)).to(device) for spec in sim.specs.values()]
    inputs, labels = torch.from_numpy(task.dataset.inputs).to(device), sim.data.labels
    loop = plain.on_device(models, sim.method.predict, inputs, labels, task.clients, BATCH, LR)
    with arithmetic(sim):
        found["plain loop, ms"] = 1e3 * seconds(loop, warm_up=1, times=3)
    found["ratio to the plain loop"] = found["plain loop, ms"] / found["our round, ms"]
    sim.executor.close()
    return found


def memory(device: str) -> dict[str, float]:
    """Device memory of training: 10 clients, and 1,000 clients of which 10 are sampled."""
    found = {}
    for clients in (10, 1000):
        clear()
        sim = simulation(
            "fedmoe", images(clients, "cnn1"), device=device, participation=10 / clients, evaluate_every=10**6
        )
        torch.cuda.reset_peak_memory_stats()
        data = torch.cuda.memory_allocated()
        for _ in range(4):
            sim.step()
        found[f"{clients} clients, 10 in a round: peak MiB beside the data"] = (
            torch.cuda.max_memory_allocated() - data
        ) / 2**20
        del sim
    return found


def machine(device: str, commit: str | None) -> dict[str, str]:
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return environment(torch.device(device)) | {"commit": commit or head.stdout.strip() or "unknown"}


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.2f}"


def markdown(found: dict[str, dict[str, Any]]) -> str:
    lines = [" · ".join(f"{name} {value}" for name, value in found["machine"].items())]
    for title, figures in found.items():
        if title != "machine":
            rows = [f"| {name.strip()} | {shown(value)} |" for name, value in figures.items()]
            lines += ["", f"### {title}", "", "| | |", "|---|---:|", *rows]
    return "\n".join(lines) + "\n"


def report(parts: Parts, environment: dict[str, str], path: Path | None) -> None:
    """Measure one part after another; each is printed, and written to the file, when it is there."""
    found: dict[str, Any] = {"machine": environment}
    print(" · ".join(f"{k} {v}" for k, v in environment.items()), flush=True)
    for title, part in parts.items():
        found[title] = part()
        print(f"\n{title}")
        for name, value in found[title].items():
            print(f"  {name:48} {shown(value):>12}", flush=True)
        if path:
            path.write_text(markdown(found), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--commit", help="what to call the code, where git is not there to ask")
    parser.add_argument("--only", default="", help="what has this in its title")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small, wide = "CNN with 6 and 16 filters", "CNN with 32 and 64 filters"
    parts: Parts
    if device == "cuda":
        sizes = "50 clients × 500 images, batch 50"
        parts = {
            f"{small}, {sizes}, float32": lambda: plain_cnn("cnn-da", device, 50),
            f"{wide}, {sizes}, float32": lambda: plain_cnn("cnn-pm", device, 50),
            f"{wide}, {sizes}, tf32": lambda: plain_cnn("cnn-pm", device, 50, precision="tf32"),
            f"{wide}, {sizes}, tf32, compiled": lambda: plain_cnn("cnn-pm", device, 50, precision="tf32", compile=True),
            "FedMoE, 100 clients × 500 images, five models, float32": lambda: fedmoe(device, 100),
            "FedMoE, 100 clients × 500 images, five models, tf32": lambda: fedmoe(device, 100, precision="tf32"),
            "memory": lambda: memory(device),
        }
    else:
        parts = {
            f"{wide}, 10 clients × 500 images, batch 50, float32": lambda: plain_cnn("cnn-pm", device, 10),
            f"{wide}, 10 clients × 500 images, batch 50, bfloat16": lambda: plain_cnn(
                "cnn-pm", device, 10, precision="bfloat16"
            ),
            "FedMoE, 10 clients × 500 images, five models, float32": lambda: fedmoe(device, 10),
        }
    parts = {title: part for title, part in parts.items() if arguments.only in title}
    report(parts, machine(device, arguments.commit), arguments.markdown)


if __name__ == "__main__":
    main()
