"""Which file holds which client: a list that grows by what changed, so that a checkpoint of few costs little.

A line is `[client, file, bytes, crc32]`, and the last one of a client counts. The checkpoint notes how much of the list
is its own; when most lines are old ones, it is written anew, under another name.
"""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from fedexperts.engine.saved import Record, check_file, write_bytes

SLACK = 100
"""Old lines that are not worth writing the list anew for."""


class Index:
    """The list of a run's folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._now: Record = {}  # as the last checkpoint knows it; nothing before there is a line
        self._next: Record = {}
        self._lines = self._next_lines = 0

    def extended(self, changed: Mapping[int, Record], everyone: Mapping[int, Record]) -> Record:
        """Add what changed. Valid is what came before until the checkpoint that names this is complete (`settle`)."""
        if self._now and self._lines + len(changed) <= 2 * len(everyone) + SLACK:
            self._next, self._next_lines = self._appended(_lines(changed)), self._lines + len(changed)
        elif everyone:
            number = 1 + int(self._now["file"].split(".")[1]) if self._now else 1
            self._next = write_bytes(self._place, f"clients.{number}.jsonl", _lines(everyone))
            self._next_lines = len(everyone)
        return self._next

    def settle(self) -> None:
        """The checkpoint is complete."""
        if self._now and self._now["file"] != self._next["file"]:
            (self._place / self._now["file"]).unlink(missing_ok=True)
        self._now, self._lines = self._next, self._next_lines

    def read(self, named: Record) -> dict[int, Record]:
        """Every client's file, as a checkpoint names them."""
        if "file" not in named:  # nobody's; or of format 1, which had them all in the checkpoint itself
            return {int(client): record for client, record in named.items()}
        lines = check_file(self._place, named, growing=True).splitlines()
        self._now = self._next = named
        self._lines = self._next_lines = len(lines)
        return {client: {"file": f, "bytes": b, "crc32": c} for client, f, b, c in map(json.loads, lines)}

    def _appended(self, raw: bytes) -> Record:
        with open(self._place / self._now["file"], "r+b") as file:
            file.truncate(self._now["bytes"])  # what came later belongs to a checkpoint that was never completed
            file.seek(0, os.SEEK_END)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        size, check = self._now["bytes"] + len(raw), zlib.crc32(raw, self._now["crc32"])
        return {"file": self._now["file"], "bytes": size, "crc32": check}

    @property
    def _place(self) -> Path:
        assert self.folder is not None, "a store without a folder has no list of files"
        return self.folder


def _lines(records: Mapping[int, Record]) -> bytes:
    lines = (json.dumps([client, *record.values()]) for client, record in sorted(records.items()))
    return "".join(f"{line}\n" for line in lines).encode()
