"""Runs beside each other: what each is called, how it is drawn, and what it is measured against."""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedexperts.analyses import Sweep, by_seed
from fedexperts.config import TaskSettings
from fedexperts.errors import SettingsError
from fedexperts.measure import Figure, Record, task_of
from fedexperts.methods.standalone import Standalone

# Okabe and Ito's colours, which colour-blind people can tell apart; the yellow, weak on white, comes last.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
REFERENCE_COLOUR = "#8A8A8A"  # Standalone is grey in every figure
DASHES = ("solid", "dot", "dash", "dashdot")
TASK = TaskSettings.model_fields.keys() - {"data_dir", "download"}  # the same files may lie elsewhere
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
        """The mean of the clients' gains, as it is shown."""
        return _shown_mean(self.gains)


@dataclass(frozen=True)
class Line:
    """Runs that are drawn as one: they differ in nothing but their seed."""

    run: Run  # how it is called and drawn, with the record of the first
    runs: Sequence[Run]

    @property
    def records(self) -> list[Record]:
        return [run.record for run in self.runs]

    @property
    def selected(self) -> list[float]:
        """The selected mean accuracy of each seed."""
        return [run.selected.mean for run in self.runs]

    @property
    def gains(self) -> list[float]:
        """What each client of each seed gains over Standalone with that seed, in points."""
        return [gain for run in self.runs for gain in run.gains]

    @property
    def gain(self) -> float | None:
        """The mean of the gains, as exact as it is shown: a lead that nobody sees is none."""
        return _shown_mean(self.gains)

    @property
    def rounds(self) -> np.ndarray:
        return self.run.record.curve.rounds

    def means(self, samples: bool = False) -> np.ndarray:
        """Seeds × evaluated rounds: mean test accuracy over the clients, or over their test samples."""
        return np.stack([record.curve.means(samples) for record in self.records])


def line_up(records: Sequence[Record]) -> list[Run]:
    """The records as runs, in the order given; the same records look the same in every table and figure."""
    if not records:
        raise SettingsError("there is no run to show; give at least one")
    looks = _looks(records)
    return [
        Run(record, name, *look, _standalone_of(record, records))
        for record, name, look in zip(records, run_names(records), looks, strict=True)
    ]


def lines(runs: Sequence[Run]) -> list[Line]:
    """The runs, those that differ only in their seed together."""
    groups = [[runs[position] for position in group] for group in by_seed([run.record for run in runs])]
    firsts = [group[0].record for group in groups]
    names = [
        f"{name}, {len(group)} seeds" if len(group) > 1 else group[0].name
        for group, name in zip(groups, run_names(firsts, {"seed"}), strict=True)
    ]
    return [
        Line(replace(look, name=name), group) for look, name, group in zip(line_up(firsts), names, groups, strict=True)
    ]


def sweep_looks(sweep: Sweep) -> list[Run]:
    """How each line of a sweep is called and drawn."""
    firsts = [line.records[0] for line in sweep.lines]
    names = run_names(firsts, {"seed", sweep.setting})
    return [replace(run, name=name) for run, name in zip(line_up(firsts), names, strict=True)]


def ranked(runs: Sequence[Run]) -> list[Run]:
    """Best selected mean first."""
    return sorted(runs, key=lambda run: -run.selected.mean)


def listed(names: Sequence[str]) -> str:
    """As in a sentence: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _shown_mean(points: Sequence[float]) -> float | None:
    return round(sum(points) / len(points), 2) + 0.0 if points else None  # + 0.0: never "-0.00"


def _looks(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Colour, dash and symbol. Seeds of one run share its colour; what has the same colour differs in the others."""
    looks: dict[int, tuple[str, str, str]] = {}
    groups: Counter[bool] = Counter()
    turns: Counter[str] = Counter()
    for group in by_seed(records):
        alone = _is_standalone(records[group[0]])
        number = groups[alone]
        groups[alone] += 1
        first = 0 if alone else number % len(PALETTE)
        colour = REFERENCE_COLOUR if alone else PALETTE[first]
        for position in group:
            turn = turns[colour]
            turns[colour] += 1
            looks[position] = (
                colour,
                DASHES[(first + turn) % len(DASHES)],
                SYMBOLS[(number + turn) % len(SYMBOLS)],
            )
    return [looks[position] for position in range(len(records))]


def _is_standalone(record: Record) -> bool:
    return record.settings.method == Standalone.name


def _standalone_of(record: Record, records: Sequence[Record]) -> Record | None:
    """The best Standalone run of the record's task: the reference must not be the weakest at hand."""
    alone = [other for other in records if _is_standalone(other) and task_of(other) == task_of(record)]
    return max(alone, key=lambda other: other.figures["selected"].mean, default=None)


def run_names(records: Sequence[Record], ignored: Container[str] = ()) -> list[str]:
    """Titles; what else it takes to tell runs apart: where tasks differ, or runs of one method, or else a number."""
    flat = [_flat(record, ignored) for record in records]
    names = []
    for record, own in zip(records, flat, strict=True):
        twins = [values for other, values in zip(records, flat, strict=True) if other.title == record.title]
        differing = [
            f"{key} {value}"
            for key, value in own.items()
            if any(values.get(key) != value for values in (flat if key in TASK else twins))
        ]
        names.append(f"{record.title} ({', '.join(differing)})" if differing else record.title)
    return [
        name if names.count(name) == 1 else f"{name} #{names[: position + 1].count(name)}"
        for position, name in enumerate(names)
    ]


def _flat(record: Record, ignored: Container[str]) -> dict[str, Any]:
    values, begins_with = record.settings.model_dump(), record.settings.begins_with
    values |= values.pop("options")
    for table in [name for name, value in values.items() if isinstance(value, dict)]:
        inner = values.pop(table)  # how a run was made that this one begins with; if it has a folder, that says it
        values |= {} if begins_with else {f"{table} {name}": value for name, value in inner.items()}
    for name, folder in begins_with.items():  # every seed begins with another run
        values[name] = None if "seed" in ignored else folder.name
    shown = {key: _in_turn(value) for key, value in values.items() if value is not None and key not in ignored}
    return {key.rstrip("_"): value for key, value in shown.items()}


def _in_turn(value: Any) -> Any:
    """What goes to the clients in turn, as it is given on the command line."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value
