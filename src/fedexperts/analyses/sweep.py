"""Runs that differ in one setting: accuracy against it (FedMoE's Figures 7 and 8). Seeds are repetitions."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedexperts.errors import SettingsError, suggestion
from fedexperts.measure import Kind, Record


@dataclass(frozen=True)
class Point:
    """A setting's value and the accuracy there; `std` is over the seeds, None if there is only one."""

    value: float
    mean: float
    std: float | None
    seeds: int


@dataclass(frozen=True)
class SweepLine:
    """Runs alike in all but the swept setting and the seed; a method without the setting has a `level` only."""

    records: Sequence[Record]
    points: Sequence[Point]
    level: float | None = None


@dataclass(frozen=True)
class Sweep:
    """Accuracy against a setting."""

    setting: str
    lines: Sequence[SweepLine]


def by_seed(records: Sequence[Record]) -> list[list[int]]:
    """The positions of runs that differ in nothing but their seed, together; the same seed again begins a new list."""
    turns: Counter[str] = Counter()
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for position, record in enumerate(records):
        exactly = _key(record)
        groups[_key(record, "seed"), turns[exactly]].append(position)
        turns[exactly] += 1
    return list(groups.values())


def swept(records: Sequence[Record]) -> list[str]:
    """The settings, all numbers, in which runs of one method differ; seeds do not count."""
    values: dict[tuple[str, str], set[float]] = defaultdict(set)
    for record in records:
        for name, value in _numbers(record).items():
            values[record.settings.method, name].add(value)
    return list(dict.fromkeys(name for (_, name), found in values.items() if len(found) > 1))


def sweep(records: Sequence[Record], over: str | None = None, kind: Kind = "selected", samples: bool = False) -> Sweep:
    """Mean accuracy against the one setting in which the runs differ, or against `over`; a line for each method.

    Where runs differ in more, as in their data set, each combination has a line of its own. The mean is over clients,
    or over their test samples.
    """
    over = _the_setting(records) if over is None else over.replace("-", "_")
    with_value = {record.settings.method for record in records if over in _numbers(record)}
    if not with_value:
        known = sorted({name for record in records for name in _numbers(record)})
        raise SettingsError(f"no run has a number as '{over}'{suggestion(over, known)}")
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.settings.method in with_value and over not in _numbers(record):
            raise SettingsError(f"a run of {record.title} does not say its {over}, others do; leave it out")
        groups[_key(record, "seed", over)].append(record)
    return Sweep(over, [_line(group, over, kind, samples) for group in groups.values()])


def _the_setting(records: Sequence[Record]) -> str:
    names = swept(records)
    if not names:
        raise SettingsError("these runs do not differ in a setting that is a number; a sweep needs runs that do")
    if len(names) > 1:
        raise SettingsError(
            f"these runs differ in {', '.join(names)}: say which of them is swept, for example --over {names[0]}"
        )
    return names[0]


def _line(records: Sequence[Record], over: str, kind: Kind, samples: bool) -> SweepLine:
    found: dict[float | None, list[float]] = defaultdict(list)
    for record in records:
        found[_numbers(record).get(over)].append(record.accuracy(kind, samples))
    if None in found:
        return SweepLine(records, [], level=float(np.mean(found[None])))
    points = [
        Point(value, float(np.mean(means)), float(np.std(means, ddof=1)) if len(means) > 1 else None, len(means))
        for value, means in sorted((value, means) for value, means in found.items() if value is not None)
    ]
    return SweepLine(records, points)


def _values(record: Record) -> dict[str, Any]:
    """What defines a run, its method's own options among the rest.

    That it begins with another run is one of them, not with which: every seed begins with its own.
    """
    values = record.settings.defining()
    own: dict[str, Any] = values.pop("options")
    return values | own | dict.fromkeys(record.settings.begins_with, "a run")


def _key(record: Record, *ignored: str) -> str:
    return json.dumps({name: value for name, value in _values(record).items() if name not in ignored}, sort_keys=True)


def _numbers(record: Record) -> dict[str, float]:
    """Those that are numbers; what goes to the clients in turn is one if all get the same."""
    found = {}
    for name, value in _values(record).items():
        only = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(only, int | float) and not isinstance(only, bool) and name != "seed":
            found[name] = only
    return found
