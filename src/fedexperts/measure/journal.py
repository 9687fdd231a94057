"""What happened now and then in a run, a row each, written at the end of the round."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fedexperts.engine import Observer
from fedexperts.measure.growing import GrowingTable


class Journal(Observer):
    """Keeps a file; a run in which nothing happens has none."""

    columns: ClassVar[Sequence[str]]

    def __init__(self, path: Path | None) -> None:
        """Without a path it only notes, for another process that writes."""
        self._table = None if path is None else GrowingTable(path, self.columns)
        self._present: list[dict[str, object]] = []

    def note(self, *row: object) -> None:
        self._present.append(dict(zip(self.columns, row, strict=True)))

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        if self._present and self._table is not None:
            self._table.add(self._present)
        self._present = []

    def noted(self) -> Any:
        return [list(row.values()) for row in self._present]

    def add(self, noted: Any) -> None:
        for row in noted:
            self.note(*row)

    def save(self) -> dict[str, Any]:
        return {} if self._table is None else {"bytes": self._table.saved_length()}

    def restore(self, saved: dict[str, Any]) -> None:
        if self._table is not None:
            self._table.cut(saved.get("bytes", 0))
