"""Which file holds which client: a list that grows by what changed, so that a checkpoint of few costs little.

A line is `[client, file, bytes, crc32]`, and the last one of a client counts. The checkpoint notes how much of the list
is its own; when most lines are old ones, it is written anew, under another name.
"""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from fedexperts.engine.saved import Record, check_file, check_there, write_bytes
from fedexperts.engine.store import CLIENTS

SLACK = 100
"""Old lines that are not worth writing the list anew for."""


class Index:
    """The list of a run's folder, as the last checkpoint knows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[int, Record] = {}
        self._list: Record = {}  # nothing before there is a line
        self._lines = 0
        self._coming: tuple[Mapping[int, Record], Record, int] = {}, {}, 0

    def extended(self, changed: Mapping[int, Record]) -> Record:
        """The list with what changed, for a checkpoint; until it is complete (`settle`), files of the last one stay."""
        clients = len(self.files) + sum(client not in self.files for client in changed)
        if self._list and self._lines + len(changed) <= 2 * clients + SLACK:
            self._coming = changed, self._appended(_lines(changed)), self._lines + len(changed)
        elif clients:
            number = 1 + int(self._list["file"].split(".")[1]) if self._list else 1
            anew = write_bytes(self.folder, f"clients.{number}.jsonl", _lines({**self.files, **changed}))
            self._coming = changed, anew, clients
        return self._coming[1]

    def settle(self) -> None:
        """The checkpoint is complete: what only the one before it needed can go."""
        before, (changed, self._list, self._lines) = self._list, self._coming
        gone = {self.files[client]["file"] for client in changed if client in self.files}
        gone |= {before["file"]} if before else set()
        for name in gone - {record["file"] for record in changed.values()} - {self._list.get("file")}:
            (self.folder / name).unlink(missing_ok=True)
        self.files |= changed
        self._coming = {}, self._list, self._lines

    def read(self, named: Record) -> dict[int, Record]:
        """Every client's file, as a checkpoint names them; each is there, and as long as it was."""
        if "file" in named:
            lines = check_file(self.folder, named, growing=True).splitlines()
            self.files = {client: {"file": f, "bytes": b, "crc32": c} for client, f, b, c in map(json.loads, lines)}
            self._list, self._lines = named, len(lines)
        else:  # nobody's; or of format 1, which had them all in the checkpoint itself
            self.files = {int(client): record for client, record in named.items()}
        self._coming = {}, self._list, self._lines
        for record in self.files.values():
            check_there(self.folder, record)
        return self.files

    def clear(self) -> None:
        """Remove the files of rounds after the checkpoint."""
        known = {self.folder / record["file"] for record in self.files.values()}
        for path in (self.folder / CLIENTS).glob("*/*"):
            if path not in known:
                path.unlink()

    def _appended(self, raw: bytes) -> Record:
        with open(self.folder / self._list["file"], "r+b") as file:
            file.truncate(self._list["bytes"])  # what came later belongs to a checkpoint that was never completed
            file.seek(0, os.SEEK_END)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        size, check = self._list["bytes"] + len(raw), zlib.crc32(raw, self._list["crc32"])
        return {"file": self._list["file"], "bytes": size, "crc32": check}


def _lines(records: Mapping[int, Record]) -> bytes:
    lines = (json.dumps([client, *record.values()]) for client, record in sorted(records.items()))
    return "".join(f"{line}\n" for line in lines).encode()
