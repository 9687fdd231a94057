"""PM-MoE's second phase with 20 and with 100 clients: one pool for all, not a copy of it for each.

python benchmarks/pool.py                                 on the GPU if there is one, else on the CPU
python benchmarks/pool.py --device cpu --images 100 --markdown FILE
python benchmarks/pool.py --executor stacked --group-size 20      so many clients in a stack at a time

A round: every client trains its gate an epoch over the pool and is evaluated. FedPer's personal module is the head,
LG-FedAvg's the whole extractor. Memory is what the allocator of the GPU held at most beside the samples; on a CPU
nobody counts it, and what there is is the largest resident size of the process so far: ask for one of them only.
"""

import argparse
import resource
from functools import partial
from pathlib import Path

import torch
from bench import TRAIN, clear, images, machine, report, seconds, simulation

from fedexperts.methods.message import inside

COUNTS = (20, 100)


def phase_two(base: str, clients: int, sizes: argparse.Namespace) -> dict[str, float]:
    clear()
    task = images(clients, "cnn-pm", sizes.images)
    values = {"device": sizes.device, "executor": sizes.executor, "group_size": sizes.group_size}
    sim = simulation("pm-moe", task, {"base": base}, **values)
    on_gpu = sim.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    sim.step()
    pool = sum(tensor.nbytes for tensor in inside(sim.server, "pool").values()) / 2**20
    found = {"pool, MiB": pool, "a pool for each client, MiB": clients * pool}
    found["round, ms"] = 1e3 * seconds(sim.step, warm_up=3 if on_gpu else 1, times=3)
    found["round and client, ms"] = found["round, ms"] / clients
    if on_gpu:
        found["peak MiB beside the data"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    else:
        found["largest resident size, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    sim.executor.close()
    return found


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--bases", default="fedper,lg-fedavg")
    parser.add_argument("--clients", default=",".join(map(str, COUNTS)), help="with commas")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--group-size", type=int)
    parser.add_argument("--images", type=int, default=TRAIN if on_gpu else 50, help="of each client, to train")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--commit", help="what to call the code, where git is not there to ask")
    sizes = parser.parse_args()
    parts = {
        f"PM-MoE over {base}, {n} clients × {sizes.images} images": partial(phase_two, base, n, sizes)
        for base in sizes.bases.split(",")
        for n in map(int, sizes.clients.split(","))
    }
    report(parts, machine(sizes.device, sizes.commit), sizes.markdown)


if __name__ == "__main__":
    main()
