"""Large models: a plain loop against a captured loop and a stack, and what `--executor auto` takes.

python benchmarks/backbones.py                              on the GPU if there is one, else on the CPU
python benchmarks/backbones.py --device cpu --slim 8 --markdown FILE

A round of FedAvg: every client trains an epoch and is evaluated on a few images. The first plain loop is written by
hand (`plain.py`), with the data on the device and the same arithmetic; the second is our own, `--executor loop`. The
last part is FedEMoE with all four backbones, whose rounds are more than such a loop: there the second one is the first.
"""

import argparse
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench import LR, Figures, Parts, arithmetic, clear, images, machine, report, seconds, simulation
from plain import on_device

from fedexperts.config import TOGETHER
from fedexperts.errors import RoomError
from fedexperts.methods import Model
from fedexperts.models import BACKBONES
from fedexperts.task import Task

HELD_OUT = 16
NO_ROOM = (torch.cuda.OutOfMemoryError, RoomError)


def compared(method: str, model: str, sizes: argparse.Namespace, precision: str) -> Figures:
    """Rounds of all ways, and what is to be said about memory; of those that do not fit into it nothing else."""
    device = torch.device(sizes.device)
    task = images(sizes.clients, model, sizes.images, HELD_OUT, HELD_OUT)
    ways = ["loop", "captured", "stacked"] if device.type == "cuda" else ["loop", "workers", "stacked"]
    values: dict[str, Any] = {"device": sizes.device, "batch_size": sizes.batch, "precision": precision}
    found: dict[str, float | str] = {}
    times = {"plain loop by hand": by_hand(task, **values)} if method == "fedavg" else {}
    for way in ways:
        try:
            times[way], notes = one_round(method, task, executor=way, **values)
            found |= {f"{way}, memory": "; ".join(notes)} if notes else {}
        except NO_ROOM:
            found[way] = "out of memory"
        clear()
    first = next(iter(times), None)
    for way, time in times.items():
        found[f"{way}, ms"] = 1e3 * time
        if way != first:
            found[f"{way}, times as fast as {first}"] = times[first] / time
    chosen = simulation(method, task, **values)
    with suppress(*NO_ROOM):  # what it takes is settled before
        chosen.step()
    chosen.executor.close()
    return found | {"auto takes": chosen.executor.said}


def one_round(method: str, task: Task, **values: Any) -> tuple[float, list[str]]:
    """Seconds, and whether all clients had room at once."""
    sim = simulation(method, task, **values)
    try:
        # On a GPU steps are captured after two eager ones; a stage may have one step a round.
        return seconds(sim.step, warm_up=3 if sim.device.type == "cuda" else 1, times=3), sim.waves.notes
    finally:
        sim.executor.close()


def by_hand(task: Task, **values: Any) -> float:
    sim = simulation("fedavg", task, **values)
    models = [Model(sim.method.parts(spec)).to(sim.device) for spec in sim.specs.values()]
    inputs = torch.from_numpy(task.dataset.inputs).to(sim.device)
    loop = on_device(models, sim.method.predict, inputs, sim.data.labels, task.clients, values["batch_size"], LR)
    with arithmetic(sim):
        return seconds(loop, warm_up=1, times=3)


def parts(sizes: argparse.Namespace) -> Parts:
    """What is measured: titles and work."""
    slim = f"/{sizes.slim}" if sizes.slim > 1 else ""
    scale = f"{sizes.clients} clients × {sizes.images} images, batch {sizes.batch}"
    models = {name: ("fedavg", name + slim) for name in BACKBONES if not name.endswith("-512")}
    models["FedEMoE with all four"] = ("fedemoe", ",".join(name + slim for name in TOGETHER["backbones"]))
    return {
        f"{name}{slim}, {scale}, {precision}": partial(compared, method, model, sizes, precision)
        for name, (method, model) in models.items()
        if not sizes.only or name in sizes.only.split(",")
        for precision in sizes.precision.split(",")
    }


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--slim", type=int, help="widths divided by it: 1, 2, 4, 8 or 16 (1 on a GPU, 16 on a CPU)")
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--images", type=int, help="of each client, to train (512 on a GPU, 16 on a CPU)")
    parser.add_argument("--batch", type=int, help="(64 on a GPU, 16 on a CPU)")
    parser.add_argument("--precision", default="float32,bfloat16" if on_gpu else "float32", help="with commas")
    parser.add_argument("--only", help="these models, with commas")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--commit", help="what to call the code, where git is not there to ask")
    sizes = parser.parse_args()
    usual = (1, 512, 64) if sizes.device.startswith("cuda") else (16, 16, 16)
    for name, value in zip(("slim", "images", "batch"), usual, strict=True):
        setattr(sizes, name, getattr(sizes, name) or value)
    report(parts(sizes), machine(sizes.device, sizes.commit), sizes.markdown)


if __name__ == "__main__":
    main()
