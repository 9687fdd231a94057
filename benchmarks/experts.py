"""Sparse experts against dense ones: what it saves that a sample goes only through the expert it is sent to.

python benchmarks/experts.py                              on the GPU if there is one, else on the CPU
python benchmarks/experts.py --device cpu --markdown FILE

A round of FedMoE-DA (top-1), every client one epoch, no peers. Samples are sent to the experts in turn, so that all of
them have work in every step: the worst case for sparse experts; a gate that prefers some of them makes them quicker.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from bench import BATCH, LR, images, machine, report, seconds
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedexperts.config import Settings, TrainSettings
from fedexperts.engine import Simulation
from fedexperts.measure import History
from fedexperts.methods import Model, State
from fedexperts.methods.fedmoe_da import FedMoEDA
from fedexperts.models import Parts, SparseExperts
from fedexperts.task import ClientSpec, Task

COUNTS = (4, 8, 16)
WARM_UP, TURNS = 2, 4


class DenseExperts(SparseExperts):
    """Every expert on every sample; those that were not chosen count nothing."""

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.children()], dim=1)
        number = torch.arange(outputs.shape[1], device=x.device)
        share = ((chosen[..., None] == number) * weights[..., None]).sum(1)
        return (share[..., None] * outputs).sum(1)


class Sparse(FedMoEDA):
    """FedMoE-DA whose samples go to the experts in turn."""

    kind: type[SparseExperts] = SparseExperts

    def parts(self, client: ClientSpec) -> Parts:
        parts = super().parts(client)
        experts = cast(list[nn.Sequential], list(parts["experts"].children()))
        return parts | {"experts": self.kind(experts, client.classes)}

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        embedded = model.embedding(x)
        scores = model.gate(embedded.flatten(1)).softmax(1)
        chosen = (torch.arange(len(x), device=x.device) % scores.shape[1])[:, None]
        return cast(Tensor, model.experts(embedded, chosen, scores.gather(1, chosen)))


class Dense(Sparse):
    """The same with dense experts."""

    kind = DenseExperts


def simulation(
    method: type[Sparse], task: Task, experts: int, history: History, device: str, **values: Any
) -> Simulation:
    given = {"method": "fedmoe-da", "batch_size": BATCH, "lr": LR, "rounds": 10**6, "evaluate_every": 10**6}
    settings = Settings.check(task.settings.model_dump() | given | {"device": device} | values)
    made = method(settings.part(TrainSettings), {"experts": experts, "asked": 0})
    return Simulation(made, task, settings, (history,))


def compared(model: str, experts: int, clients: int, device: str, **values: Any) -> dict[str, float]:
    """A round of both: the best of several, taken in turns, so that what else the machine does disturbs both alike."""
    task = images(clients, model)
    kinds = {"dense": Dense, "sparse": Sparse}
    histories = {name: History() for name in kinds}
    sims = {name: simulation(kind, task, experts, histories[name], device, **values) for name, kind in kinds.items()}
    for name, sim in sims.items():
        histories[name].started(sim)
    times = [
        {name: seconds(sim.step, warm_up=0, times=1) for name, sim in sims.items()} for _ in range(WARM_UP + TURNS)
    ]
    best = {name: min(turn[name] for turn in times[WARM_UP:]) for name in kinds}
    flops = {name: sum(row["flops"] for row in history.rows) for name, history in histories.items()}
    for sim in sims.values():
        sim.executor.close()
    return {
        "dense round, ms": 1e3 * best["dense"],
        "sparse round, ms": 1e3 * best["sparse"],
        "sparse is so many times as fast": best["dense"] / best["sparse"],
        "FLOPs of training, sparse / dense": flops["sparse"] / flops["dense"],
        "FLOPs of the experts, sparse / dense": expert_flops(Sparse, task, experts)
        / expert_flops(Dense, task, experts),
    }


def expert_flops(method: type[Sparse], task: Task, experts: int) -> int:
    """Of a batch through the experts alone, forward and backward."""
    parts = method(options={"experts": experts}).parts(task.spec(0))
    embedded = parts["embedding"](torch.zeros(BATCH, *task.shape)).detach()
    chosen = (torch.arange(BATCH) % experts)[:, None]
    with FlopCounterMode(display=False) as counter:
        parts["experts"](embedded, chosen, torch.ones(BATCH, 1)).sum().backward()
    return int(counter.get_total_flops())


def parts(device: str) -> dict[str, Callable[[], dict[str, float]]]:
    """What is measured: titles and work."""
    clients = 50 if device.startswith("cuda") else 2
    models = {"cnn-da": "CNN with 6 and 16 filters", "cnn-pm": "CNN with 32 and 64 filters"}
    return {
        f"FedMoE-DA, {experts} experts, {title}, {clients} clients × 500 images, batch {BATCH}": (
            lambda model=model, experts=experts: compared(model, experts, clients, device)  # type: ignore[misc]
        )
        for model, title in models.items()
        for experts in COUNTS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--commit", help="what to call the code, where git is not there to ask")
    arguments = parser.parse_args()
    report(parts(arguments.device), machine(arguments.device, arguments.commit), arguments.markdown)


if __name__ == "__main__":
    main()
