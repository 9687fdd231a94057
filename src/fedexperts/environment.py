"""What a figure was made with: versions, the commit, the device."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def environment(device: torch.device) -> dict[str, str]:
    """What a figure was made with."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    try:
        ours = version("fedexperts")
    except PackageNotFoundError:
        ours = "a source tree that is not installed"
    return {
        "fedexperts": ours,
        **_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type} ({name})",
    }


@cache
def _commit() -> dict[str, str]:
    """The commit of our own source tree, with "-dirty" if it was changed since; nothing where there is none."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # else the tree around us is somebody else's
        return {"commit": git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")}
    except (OSError, subprocess.CalledProcessError):
        return {}


def _processor() -> str:
    """The CPU's name and cores; Python's own `platform.processor` is empty on most Linux systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"
