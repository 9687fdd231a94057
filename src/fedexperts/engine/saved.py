"""The files of a checkpoint: each known by its name, size and checksum, all of them through one manifest."""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch

from fedexperts.errors import SavedStateError
from fedexperts.files import write_atomically
from fedexperts.methods import State, pack

FORMAT = 2
READS = (1, FORMAT)
MANIFEST = "checkpoint.json"
KEYS = {"round", "settings", "data", "server", "clients", "observers", "seconds"}
"""What a checkpoint holds."""
Record = dict[str, Any]
"""A file of a checkpoint: its name, size and checksum."""


def write_tensors(folder: Path, name: str, tensors: State, wait: bool = True) -> Record:
    """Write tensors to a new file, safely on disk when this returns, unless one does not `wait` for that."""
    return write_bytes(folder, name, pack(tensors), wait)


def write_bytes(folder: Path, name: str, raw: bytes, wait: bool = True) -> Record:
    """The same for any bytes."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(raw)
        file.flush()
        if wait:
            os.fsync(file.fileno())
    return {"file": name, "bytes": len(raw), "crc32": zlib.crc32(raw)}


def check_there(folder: Path, record: Record, growing: bool = False) -> None:
    """That a checkpoint's file is there, with as many bytes as were written; a `growing` one may have more by now."""
    path = folder / str(record["file"])
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise SavedStateError(f"the checkpoint names {path}, which is not there; start the run again") from None
    if size < record["bytes"] or (size > record["bytes"] and not growing):
        raise SavedStateError(
            f"{path} has {size} bytes where the checkpoint says {record['bytes']}: it was cut off or changed; "
            "restore it from a copy or start the run again"
        )


def check_file(folder: Path, record: Record, growing: bool = False) -> bytes:
    """The bytes of a checkpoint's file, if they are what was written."""
    check_there(folder, record, growing)
    path = folder / str(record["file"])
    raw = path.read_bytes()[: record["bytes"]]
    if zlib.crc32(raw) != record["crc32"]:
        raise SavedStateError(
            f"{path} is damaged (its checksum differs); restore it from a copy or start the run again"
        )
    return raw


def read_tensors(folder: Path, record: Record) -> State:
    tensors: State = safetensors.torch.load(check_file(folder, record))
    return dict(sorted(tensors.items()))  # the format itself keeps no order


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Make a checkpoint the current one, in one atomic step, and clear away the servers of those before."""
    write_atomically(folder / MANIFEST, json.dumps({"format": FORMAT, **content}))
    for path in folder.glob("server.*.safetensors"):
        if path.name != content["server"]["file"]:
            path.unlink()


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SavedStateError(f"there is no checkpoint in {folder.parent}; start the run again") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise SavedStateError(f"{path} is cut off or damaged; restore it from a copy or start the run again") from None
    if not isinstance(content, dict) or content.get("format") not in READS or not content.keys() >= KEYS:
        found = content.get("format") if isinstance(content, dict) else None
        raise SavedStateError(
            f"{path} is a checkpoint of format {found!r}, this version of fedexperts reads formats "
            f"{' and '.join(map(str, READS))}; continue it with the version that wrote it (see settings.toml) or start "
            "the run again"
        )
    return content
