"""Who was missing when: one row for each site that did not do what it was asked, and why."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedexperts.engine import Observer
from fedexperts.measure.growing import GrowingTable

ABSENCES = "absences.csv"
COLUMNS = ("round", "client", "site", "task", "why")


class Absences(Observer):
    """Keeps the file `absences.csv`; a run in which nobody is ever missing has none."""

    def __init__(self, path: Path) -> None:
        self._table = GrowingTable(path, COLUMNS)
        self._present: list[dict[str, object]] = []

    def absent(self, *row: object) -> None:
        self._present.append(dict(zip(COLUMNS, row, strict=True)))

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        if self._present:
            self._table.add(self._present)
            self._present = []

    def save(self) -> dict[str, Any]:
        return {"bytes": self._table.saved_length()}

    def restore(self, saved: dict[str, Any]) -> None:
        self._table.cut(saved.get("bytes", 0))
