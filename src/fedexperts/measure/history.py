"""The history of a run: one row per round and client, written as it happens."""

import csv
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from fedexperts.engine import Evaluation, Job, Observer, Simulation
from fedexperts.measure.flops import FlopMeter
from fedexperts.measure.growing import GrowingTable
from fedexperts.measure.ledger import Ledger, Traffic
from fedexperts.methods import Channel, Message

COLUMNS = (
    "round",
    "client",
    "train_loss",  # mean over the steps of the client's last stage; empty if it was not sampled
    "validation_accuracy",
    "validation_samples",
    "test_accuracy",
    "test_samples",
    *(f"{channel}_{what}" for channel in Channel for what in ("parameters", "bytes")),
    "flops",
)
Row = dict[str, float | None]


class History(Observer):
    """Collects the rows, in memory and, if it has a file, there too."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._table = None if path is None else GrowingTable(path, COLUMNS)
        self.rows: list[Row] = []
        self.ledger = Ledger()
        self.flops = FlopMeter()
        self._evaluations: dict[int, Evaluation] = {}

    def started(self, simulation: Simulation) -> None:
        self.flops.started(simulation)
        if self._table is not None:
            self._table.add(())  # a file that cannot be written is known before the first round

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        self.ledger.message(round_number, channel, client, message)

    def trained(self, round_number: int, job: Job) -> None:
        self.flops.trained(round_number, job)

    def evaluated(self, round_number: int, results: list[Evaluation]) -> None:
        self._evaluations = {result.client: result for result in results}

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        clients = {*losses, *self._evaluations, *(client for client, _ in self.ledger.present)}
        rows = [self._row(round_number, client, losses.get(client)) for client in sorted(clients)]
        self.rows += rows
        if self._table is not None:
            self._table.add(rows)
        self._evaluations = {}
        self.ledger.ended(round_number, losses)
        self.flops.ended(round_number, losses)

    def _row(self, round_number: int, client: int, loss: float | None) -> Row:
        row: Row = dict.fromkeys(COLUMNS)
        row |= {
            "round": round_number,
            "client": client,
            "train_loss": loss,
            "flops": self.flops.present.get(client, 0),
        }
        if (result := self._evaluations.get(client)) is not None:
            row |= {
                "validation_accuracy": result.validation_correct / result.validation_samples,
                "validation_samples": result.validation_samples,
                "test_accuracy": result.test_correct / result.test_samples,
                "test_samples": result.test_samples,
            }
        for channel in Channel:
            traffic = self.ledger.present.get((client, channel))
            row[f"{channel}_parameters"] = traffic.parameters if traffic else 0
            row[f"{channel}_bytes"] = traffic.bytes if traffic else 0
        return row

    def noted(self) -> Any:
        traffic = [[*key, *astuple(found)] for key, found in self.ledger.present.items()]
        return {"traffic": traffic, "flops": list(self.flops.present.items())}

    def add(self, noted: Any) -> None:
        self.flops.present |= dict(noted["flops"])
        for client, channel, *counts in noted["traffic"]:
            self.ledger.present[client, Channel(channel)] = Traffic(*counts)

    def save(self) -> dict[str, Any]:
        return {} if self._table is None else {"history_bytes": self._table.saved_length()}

    def restore(self, saved: dict[str, Any]) -> None:
        if self._table is None:
            return
        self._table.cut(saved.get("history_bytes", 0))
        self.rows = read_history(self._table.path) if self._table.path.exists() else []


def read_history(path: Path, growing: bool = False) -> list[Row]:
    """The rows of a history file; empty cells are None. The last line of a growing one may not be whole yet."""
    text = path.read_text(encoding="utf-8")
    header, *rows = csv.reader((text[: text.rfind("\n") + 1] if growing else text).splitlines())
    if tuple(header) != COLUMNS or any(len(row) != len(COLUMNS) for row in rows):
        raise ValueError(f"{path.name} does not have the columns {', '.join(COLUMNS)} in every row")
    return [{name: _value(cell) for name, cell in zip(COLUMNS, row, strict=True)} for row in rows]


def _value(cell: str) -> float | None:
    if cell == "":
        return None
    return int(cell) if cell.isdigit() else float(cell)
