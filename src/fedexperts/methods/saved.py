"""What a finished run left at its server, for methods that begin with something pre-trained."""

from functools import lru_cache
from pathlib import Path

import safetensors.torch

from fedexperts.errors import MethodError
from fedexperts.methods.message import State, inside


def saved_part(folder: Path, part: str, option: str) -> State:
    """A shared part of the run, its tensors without the part's name; `option` is where the folder was named."""
    files = list(folder.glob("state/server.*.safetensors"))
    if len(files) != 1:
        raise MethodError(f"{folder} is not the folder of a finished run; give --{option} one of FedAvg's")
    found = _read(files[0], files[0].stat().st_mtime_ns, part)
    if not found:
        raise MethodError(f"the run in {folder} shares no {part}; give --{option} a FedAvg run")
    return found


@lru_cache(maxsize=4)
def _read(file: Path, written: int, part: str) -> State:
    """Read once for all clients, and anew when the run has been made anew."""
    return inside(safetensors.torch.load_file(file), part)


def fitting(found: State, like: State, folder: Path, option: str) -> State:
    """Those of the tensors that are needed, if they are of the right shapes."""
    if missing := [name for name, t in like.items() if name not in found or found[name].shape != t.shape]:
        raise MethodError(
            f"the run in {folder} has no {', '.join(missing)} like the clients' model; "
            f"give --{option} a FedAvg run with the same data and --model"
        )
    return {name: found[name].to(tensor) for name, tensor in like.items()}
