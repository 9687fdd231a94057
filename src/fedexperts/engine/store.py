"""Where clients live while they are not on the device, and what of them a checkpoint holds.

Every version of a client is a file of its own (`clients/000/00017.3.safetensors`), never written over: a crash at any
moment leaves the files that the last checkpoint names. What a round or a checkpoint costs depends on the clients that
changed, not on how many there are; a file is read, and its checksum with it, when its client is needed.
"""

import shutil
import tempfile
import weakref
from collections.abc import Container, Mapping
from pathlib import Path

import torch

from fedexperts.engine.saved import Record, read_tensors, write_tensors
from fedexperts.files import bring_to_disk
from fedexperts.methods import State

CLIENTS = "clients"
"""The folder of the clients' files."""
TOGETHER = 1000
"""Clients whose files lie in one folder."""


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
        self._versions: dict[int, int] = {}  # their numbers, and those of clients that have been here
        self._unwritten: set[int] = set()  # clients in memory that are newer than their file, if they have one
        self._unnamed: set[int] = set()  # clients whose newest file no checkpoint names
        self.writer, self.writers = 0, 1  # of several that write to the folder, which one: they number files apart

    def get(self, client: int) -> State | None:
        """The client's kept tensors, or nothing if it never trained."""
        if client in self._live:
            return self._live[client]
        if client not in self._files:
            return None
        tensors = read_tensors(self.folder, self._files[client])
        if not self.on_disk:
            tensors = self._live[client] = {n: t.to(self.device) for n, t in tensors.items()}
        return tensors

    def put(self, client: int, tensors: State) -> None:
        if not tensors:  # a client that keeps nothing needs no place
            return
        if self.on_disk:
            self._write(client, tensors)
        else:
            self._live[client] = {n: t.detach().to(self.device, copy=True) for n, t in tensors.items()}
            self._unwritten.add(client)

    def pop(self, client: int) -> State | None:
        """The client's kept tensors, which are no longer kept here."""
        tensors, record = self.get(client), self._files.pop(client, None)
        self._live.pop(client, None)
        self._unwritten.discard(client)
        if client in self._unnamed and record is not None:
            (self.folder / record["file"]).unlink(missing_ok=True)
        self._unnamed.discard(client)
        return tensors

    def save(self) -> dict[int, Record]:
        """Bring all to disk; the files of the clients that have changed since the last checkpoint (`saved`)."""
        for client in sorted(self._unwritten):
            self._write(client, self._live[client])
        self._unwritten.clear()
        changed = {client: self._files[client] for client in sorted(self._unnamed)}
        paths = [self.folder / record["file"] for record in changed.values()]
        for path in (*paths, *{path.parent for path in paths}, *{path.parent.parent for path in paths}):
            bring_to_disk(path)
        return changed

    def saved(self) -> None:
        """A checkpoint names these files now: they stay until another one does not."""
        self._unnamed.clear()

    def load(self, files: Mapping[int, Record], here: Container[int] | None = None) -> None:
        """Continue from what a checkpoint names, with the clients that are here, if that is not all of them."""
        self._files = {client: record for client, record in files.items() if here is None or client in here}
        self._versions = {client: int(record["file"].rsplit(".", 2)[1]) for client, record in files.items()}

    @property
    def folder(self) -> Path:
        assert self._folder is not None, "a store in memory without a folder has no files"
        return self._folder

    def _write(self, client: int, tensors: State) -> None:
        old = self._files.get(client)
        version = 1 + self._versions.get(client, 0)
        version = self._versions[client] = version + (self.writer - version) % self.writers
        name = f"{CLIENTS}/{client // TOGETHER:03}/{client:05}.{version}.safetensors"
        self._files[client] = write_tensors(self.folder, name, tensors, wait=False)
        if old is not None and client in self._unnamed:
            (self.folder / old["file"]).unlink(missing_ok=True)
        self._unnamed.add(client)
