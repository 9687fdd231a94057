"""Who fetched what from whom: one row per fetch, written as it happens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedexperts.engine import Observer
from fedexperts.measure.growing import GrowingTable
from fedexperts.methods import Want

FETCHES = "fetches.csv"
FETCH_COLUMNS = ("round", "client", "peer", "what")


class Fetches(Observer):
    """Keeps the file `fetches.csv`; a run in which nobody fetches anything has none."""

    def __init__(self, path: Path) -> None:
        self._table = GrowingTable(path, FETCH_COLUMNS)
        self._present: list[dict[str, object]] = []

    def fetched(self, round_number: int, client: int, want: Want) -> None:
        row = (round_number, client, want.peer, want.what)
        self._present.append(dict(zip(FETCH_COLUMNS, row, strict=True)))

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        if self._present:
            self._table.add(self._present)
            self._present = []

    def save(self) -> dict[str, Any]:
        return {"bytes": self._table.saved_length()}

    def restore(self, saved: dict[str, Any]) -> None:
        self._table.cut(saved.get("bytes", 0))
