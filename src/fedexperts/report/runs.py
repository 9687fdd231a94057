"""Runs beside each other: what each is called, how it is drawn, and what it is measured against."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from fedexperts.config import TaskSettings
from fedexperts.errors import SettingsError
from fedexperts.measure import Figure, Record
from fedexperts.methods.standalone import Standalone

# Okabe and Ito's colours, which colour-blind people can tell apart; the yellow, weak on white, comes last.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
REFERENCE_COLOUR = "#8A8A8A"  # Standalone is grey in every figure
DASHES = ("solid", "dot", "dash", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down")


@dataclass(frozen=True)
class Run:
    """One record among those that are shown together."""

    record: Record
    name: str
    colour: str
    dash: str
    symbol: str
    alone: Record | None  # the Standalone run of the same task

    @property
    def selected(self) -> Figure:
        return self.record.figures["selected"]

    @property
    def is_standalone(self) -> bool:
        return _is_standalone(self.record)

    @property
    def gains(self) -> list[float]:
        """What each client gains over Standalone, in points; empty if there is nothing to compare with."""
        if self.alone is None or self.is_standalone:
            return []
        reference = self.alone.figures["selected"].clients
        return [100 * (own - alone) for own, alone in zip(self.selected.clients, reference, strict=True)]

    @property
    def gain(self) -> float | None:
        """The mean of the clients' gains, as exact as it is shown: a lead that nobody sees is none."""
        return round(sum(self.gains) / len(self.gains), 2) + 0.0 if self.gains else None  # + 0.0: never "-0.00"


def line_up(records: Sequence[Record]) -> list[Run]:
    """The records as runs, in the order given; the same records look the same in every table and figure."""
    if not records:
        raise SettingsError("there is no run to show; give at least one")
    looks = {True: _looks((REFERENCE_COLOUR,)), False: _looks(PALETTE)}
    return [
        Run(record, name, *next(looks[_is_standalone(record)]), _standalone_of(record, records))
        for record, name in zip(records, _names(records), strict=True)
    ]


def ranked(runs: Sequence[Run]) -> list[Run]:
    """Best selected mean first."""
    return sorted(runs, key=lambda run: -run.selected.mean)


def task_of(record: Record) -> TaskSettings:
    """What makes runs comparable: the same data, with the same owners, for the same models."""
    task: TaskSettings = record.settings.part(TaskSettings)
    return task.model_copy(update={"data_dir": None})  # the same files may lie elsewhere


def _looks(colours: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Colour, dash and symbol; where the colours begin again, the others differ."""
    for number in count():
        turn, place = divmod(number, len(colours))
        yield colours[place], DASHES[turn % len(DASHES)], SYMBOLS[(number + turn) % len(SYMBOLS)]


def _is_standalone(record: Record) -> bool:
    return record.settings.method == Standalone.name


def _standalone_of(record: Record, records: Sequence[Record]) -> Record | None:
    """The best Standalone run of the record's task: the reference must not be the weakest at hand."""
    alone = [other for other in records if _is_standalone(other) and task_of(other) == task_of(record)]
    return max(alone, key=lambda other: other.figures["selected"].mean, default=None)


def _names(records: Sequence[Record]) -> list[str]:
    """Titles; runs of one method are told apart by the settings in which they differ, or else by a number."""
    names = []
    for record in records:
        own = _flat(record)
        twins = [_flat(other) for other in records if other.title == record.title]
        differing = [f"{key} {value}" for key, value in own.items() if any(twin.get(key) != value for twin in twins)]
        names.append(f"{record.title} ({', '.join(differing)})" if differing else record.title)
    return [
        name if names.count(name) == 1 else f"{name} #{names[: position + 1].count(name)}"
        for position, name in enumerate(names)
    ]


def _flat(record: Record) -> dict[str, Any]:
    values = record.settings.model_dump()
    return {key: value for key, value in (values | values.pop("options")).items() if value is not None}
