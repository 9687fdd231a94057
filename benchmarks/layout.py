"""Channels first or last, on one core of a CPU: a training step of one client, in float32 and in bfloat16.

python benchmarks/layout.py                     all models
python benchmarks/layout.py --model cnn-pm --markdown FILE

"first": images and filters as PyTorch has them by itself; "images last": images come with the channels last, and what
follows from them has too; "both last": filters too, as our loop and workers have them. Milliseconds of processor time
of a step of 50 images (3 × 32 × 32, with --gray 1 × 32 × 32), the best of twelve, in turns, so that other work on the
machine disturbs all alike.
"""

import argparse
import time
from pathlib import Path

import torch
from bench import BATCH, LR, machine

from fedexperts.config import TrainSettings
from fedexperts.engine.fit import Fit
from fedexperts.engine.program import Program
from fedexperts.methods import Method, Model
from fedexperts.task import ClientSpec

MODELS = ("cnn-da", "cnn-pm", "cnn1", "cnn5", "resnet18/8", "mobilenet/8", "googlenet/16")
KINDS = {"first": (False, False), "images last": (True, False), "both last": (True, True)}
TIMES = 12


def fit(model: str, channels: int, precision: str, filters_last: bool) -> Fit:
    method = Method(TrainSettings.check({"lr": LR}))
    spec = ClientSpec(0, model, (channels, 32, 32), 10, BATCH)
    torch.manual_seed(0)
    tensors = Model(method.parts(spec)).state_dict()
    if filters_last:
        last = torch.channels_last
        tensors |= {n: t.contiguous(memory_format=last) for n, t in tensors.items() if t.ndim == 4}
    stage = next(iter(method.stages(None)))  # type: ignore[arg-type]
    return Fit(Program(Model(method.parts(spec))), stage, tensors, {}, method.train, precision)


def steps(model: str, channels: int, precision: str) -> dict[str, float]:
    """Milliseconds of each kind."""
    images, labels = torch.randn(BATCH, 32, 32, channels).movedim(-1, -3), torch.randint(10, (BATCH,))
    fits = {kind: fit(model, channels, precision, filters) for kind, (_, filters) in KINDS.items()}
    best = dict.fromkeys(KINDS, float("inf"))
    for number in range(TIMES + 2):  # the first two warm up
        for kind, (images_last, _) in KINDS.items():
            x = images if images_last else images.contiguous()
            start = time.process_time()
            fits[kind].step(x, labels)
            if number > 1:
                best[kind] = min(best[kind], 1e3 * (time.process_time() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=MODELS)
    parser.add_argument("--gray", action="store_true", help="images with one channel")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--commit", help="what to call the code, where git is not there to ask")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    about = " · ".join(f"{name} {value}" for name, value in machine("cpu", arguments.commit).items())
    lines = [["model, precision", *(f"{kind}, ms" for kind in KINDS), "times"], ["---", *["--:"] * (len(KINDS) + 1)]]
    print(about, " | ".join(lines[0]), sep="\n", flush=True)
    for model in arguments.model:
        for precision in ("float32", "bfloat16"):
            best = steps(model, 1 if arguments.gray else 3, precision)
            ratio = f"{best['first'] / best['both last']:.2f}"
            what = f"{model}{', gray images' * arguments.gray}, {precision}"
            lines.append([what, *(f"{value:.1f}" for value in best.values()), ratio])
            print(" | ".join(lines[-1]), flush=True)
            if arguments.markdown:
                table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
                arguments.markdown.write_text(f"{about}\n\n{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
