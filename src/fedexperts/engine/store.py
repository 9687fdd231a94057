"""Where clients live while they are not on the device, and the files that make a checkpoint.

Every version of a client is a file of its own (`client-00017.3.safetensors`), never written over: a crash at any moment
leaves the files that the last manifest names.
"""

import json
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from fedexperts.errors import SavedStateError
from fedexperts.files import write_atomically
from fedexperts.methods import State, pack

FORMAT = 1
MANIFEST = "checkpoint.json"
KEYS = {"round", "settings", "data", "server", "clients", "observers", "seconds"}
"""What a checkpoint holds."""


class Store:
    """The kept parts of every client that has trained: in memory, on the device, or on disk."""

    def __init__(self, place: str, device: torch.device, folder: Path | None = None) -> None:
        self.on_disk = place == "disk"
        self.device = device if place == "device" else torch.device("cpu")
        if folder is None and self.on_disk:
            folder = Path(tempfile.mkdtemp(prefix="fedexperts-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._folder = folder
        self._live: dict[int, State] = {}  # what is in memory
        self._files: dict[int, Record] = {}  # the newest file of each client
        self._saved: dict[int, Record] = {}  # what the last checkpoint names
        self._versions: dict[int, int] = {}
        self.writer, self.writers = 0, 1  # of several that write to the folder, which one; they number files apart

    def get(self, client: int) -> State | None:
        """The client's kept tensors, or nothing if it never trained."""
        if client in self._live:
            return self._live[client]
        return read_tensors(self.folder, self._files[client]) if client in self._files else None

    def put(self, client: int, tensors: State) -> None:
        if not tensors:  # a client that keeps nothing needs no place
            return
        if self.on_disk:
            self._write(client, tensors)
        else:
            self._live[client] = {n: t.detach().to(self.device, copy=True) for n, t in tensors.items()}
            self._files.pop(client, None)

    def pop(self, client: int) -> State | None:
        """The client's kept tensors, which are no longer kept here."""
        tensors = self.get(client)
        for place in (self._live, self._files, self._saved):
            place.pop(client, None)
        return tensors

    def save(self) -> dict[str, "Record"]:
        """Bring all to disk; only what changed since the last time is written."""
        for client, tensors in self._live.items():
            if client not in self._files:
                self._write(client, tensors)
        self._saved = dict(self._files)
        return {str(client): record for client, record in sorted(self._files.items())}

    def load(self, records: Mapping[str, "Record"], here: Container[int]) -> None:
        """Continue from what a checkpoint names, with the clients that are here."""
        self._versions = {int(client): int(r["file"].rsplit(".", 2)[1]) for client, r in records.items()}
        self._files = {int(client): record for client, record in records.items() if int(client) in here}
        self._saved = dict(self._files)
        for client, record in self._files.items():
            check_file(self.folder, record)
            if not self.on_disk:
                tensors = read_tensors(self.folder, record)
                self._live[client] = {n: t.to(self.device) for n, t in tensors.items()}

    @property
    def folder(self) -> Path:
        assert self._folder is not None, "a store in memory without a folder has no files"
        return self._folder

    def _write(self, client: int, tensors: State) -> None:
        version = self._versions.get(client, 0) + 1
        version = self._versions[client] = version + (self.writer - version) % self.writers
        old = self._files.get(client)
        self._files[client] = write_tensors(self.folder, f"client-{client:05}.{version}.safetensors", tensors)
        if old is not None and old != self._saved.get(client):
            (self.folder / old["file"]).unlink(missing_ok=True)


Record = dict[str, Any]
"""A file of a checkpoint: its name, size and checksum."""


def write_tensors(folder: Path, name: str, tensors: State) -> Record:
    """Write tensors to a new file, safely on disk when this returns."""
    return write_bytes(folder, name, pack(tensors))


def write_bytes(folder: Path, name: str, raw: bytes) -> Record:
    """The same for any bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    return {"file": name, "bytes": len(raw), "crc32": zlib.crc32(raw)}


def check_file(folder: Path, record: Record) -> bytes:
    """The bytes of a checkpoint's file, if they are what was written."""
    path = folder / str(record["file"])
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise SavedStateError(f"the checkpoint names {path}, which is not there; start the run again") from None
    if len(raw) != record["bytes"]:
        raise SavedStateError(
            f"{path} has {len(raw)} bytes where the checkpoint says {record['bytes']}: it was cut off or changed; "
            "restore it from a copy or start the run again"
        )
    if zlib.crc32(raw) != record["crc32"]:
        raise SavedStateError(
            f"{path} is damaged (its checksum differs); restore it from a copy or start the run again"
        )
    return raw


def read_tensors(folder: Path, record: Record) -> State:
    tensors: State = safetensors.torch.load(check_file(folder, record))
    return dict(sorted(tensors.items()))  # the format itself keeps no order


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Make a checkpoint the current one, in one atomic step, and clear away files that no longer belong to it."""
    write_atomically(folder / MANIFEST, json.dumps({"format": FORMAT, **content}))
    named = {content["server"]["file"], *(record["file"] for record in content["clients"].values())}
    for path in folder.glob("*.safetensors"):
        if path.name not in named:
            path.unlink()


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SavedStateError(f"there is no checkpoint in {folder.parent}; start the run again") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise SavedStateError(f"{path} is cut off or damaged; restore it from a copy or start the run again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or not content.keys() >= KEYS:
        found = content.get("format") if isinstance(content, dict) else None
        raise SavedStateError(
            f"{path} is a checkpoint of format {found!r}, this version of fedexperts reads format {FORMAT}; "
            "continue it with the version that wrote it (see settings.toml) or start the run again"
        )
    return content
