"""A table that is written as a run goes on, and is right again after a crash."""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedexperts.engine.phases import phase
from fedexperts.errors import SavedStateError


class GrowingTable:
    """A CSV file that only grows; a checkpoint notes its length, and whoever resumes cuts off what came later."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.columns = columns

    @phase("saving")
    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Write rows at the end; the first call makes the file."""
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerows(rows)

    def saved_length(self) -> int:
        """Its bytes, which are safely on disk when this returns; 0 if there is no file."""
        if not self.path.exists():
            return 0
        with open(self.path, "rb+") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def cut(self, length: int) -> None:
        """Go back to so many bytes; without any there is no file."""
        present = self.path.stat().st_size if self.path.exists() else 0
        if present < length:
            raise SavedStateError(f"{self.path} is missing or cut off: the checkpoint knows {length} bytes of it")
        if length == 0:
            self.path.unlink(missing_ok=True)
        elif present > length:
            os.truncate(self.path, length)
