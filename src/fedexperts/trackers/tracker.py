"""What all trackers do: which figures they are given, and how a run that was interrupted goes on in them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from fedexperts.config import Settings
from fedexperts.engine import Observer, Simulation
from fedexperts.errors import SettingsError
from fedexperts.files import write_atomically
from fedexperts.measure import HISTORY, SETTINGS, SUMMARY, Figure, History, Record, Row, curve
from fedexperts.methods import Channel, method_class


@dataclass(frozen=True)
class Note:
    """As what a tool knows a run, if it does, and how many rounds it has of it."""

    run: str | None = None
    rounds: int = 0


class Tracker(Observer, ABC):
    """Gives a run's settings and, round by round, its figures to a tool.

    Beside the run lies a note (`mlflow.json` …): as what the tool knows the run, and up to which round. A run that is
    continued goes on there; rounds that the tool has not seen are given to it from the history.
    """

    name: ClassVar[str]
    """Of the tool, of its library, and of our extra that installs it."""
    keeps: ClassVar[bool] = False

    def __init__(self) -> None:
        found = find_spec(self.name)
        if found is None or found.origin is None:  # without one it is a folder of that name, such as wandb itself makes
            raise SettingsError(f"{self.name} is not installed; pip install 'fedexperts[{self.name}]'")

    # --- what a tool is asked

    @abstractmethod
    def open(self, title: str, settings: Settings, folder: Path | None, before: Note) -> Note:
        """Begin a run in the tool, or go on with the one that was noted before if the tool still has it.

        The answer says as what it is known from now on, and up to which round.
        """

    @abstractmethod
    def write(self, round_number: int, values: Mapping[str, float]) -> None:
        """The figures of a round, each below its name."""

    def conclude(self, rounds: int, figures: Mapping[str, float]) -> None:
        """The figures of the whole run; most tools take them as those of its last round."""
        self.write(rounds, figures)

    def keep(self, files: Sequence[Path]) -> None:
        """The page and the tables of the run, for a tool that `keeps` files."""

    @abstractmethod
    def close(self, reason: BaseException | None = None) -> None:
        """No more for now: the run is complete, or was stopped."""

    # --- the events

    def started(self, simulation: Simulation) -> None:
        [self._history] = [observer for observer in simulation.observers if isinstance(observer, History)]
        self._settings, folder = simulation.settings, simulation.folder.parent if simulation.folder else None
        self._path = folder / f"{self.name}.json" if folder else None
        title = simulation.method.title or simulation.method.name
        self._note = self.open(title, self._settings, folder, self._read_note())
        for number, rows in groupby(self._history.rows, key=lambda row: row["round"]):
            self._give(int(number or 0), measured(list(rows)))
        self._clock = perf_counter()

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        rows = [row for row in self._history.rows if row["round"] == round_number]
        before, self._clock = self._clock, perf_counter()
        self._give(round_number, {"seconds": self._clock - before} | measured(rows))

    def completed(self, folder: Path | None) -> None:
        beforehand = method_class(self._settings.method).beforehand
        figures = curve(self._history.rows).figures(beforehand=beforehand)
        flat = {f"figures/{kind}": figure.mean for kind, figure in figures.items()}
        flat |= {f"figures/{kind}_worst_tenth": figure.worst_tenth for kind, figure in figures.items()}
        self.conclude(self._settings.rounds, flat)
        if folder is not None and self.keeps:
            from fedexperts.report.page import write_page  # here, because plotly takes a while to import

            with TemporaryDirectory() as place:
                page = write_page([Record.load(folder)], Path(place, "report.html"))
                self.keep([page, *(folder / name for name in (SETTINGS, HISTORY, SUMMARY))])
        self.close()

    def stopped(self, reason: BaseException) -> None:
        self.close(reason)

    # --- the note

    def _give(self, round_number: int, values: Mapping[str, float]) -> None:
        if round_number <= self._note.rounds:  # a run that is continued repeats exactly what the tool has seen
            return
        self.write(round_number, values)
        self._note = replace(self._note, rounds=round_number)
        if self._path is not None:
            write_atomically(self._path, json.dumps(asdict(self._note)))

    def _read_note(self) -> Note:
        if self._path is None or not self._path.exists():
            return Note()
        return Note(**json.loads(self._path.read_text(encoding="utf-8")))


def measured(rows: Sequence[Row]) -> dict[str, float]:
    """A round's figures over its clients; no accuracies where it was not evaluated, no loss where nobody trained."""
    values: dict[str, float] = {}
    if losses := [loss for row in rows if (loss := row["train_loss"]) is not None]:
        values["train/loss"] = fmean(losses)
    for kind in ("validation", "test"):
        found = [row for row in rows if row[f"{kind}_accuracy"] is not None]
        if found:
            accuracy, samples = (np.array([row[f"{kind}_{n}"] for row in found]) for n in ("accuracy", "samples"))
            figure = Figure.of(0, accuracy, samples)
            values |= {f"{kind}/accuracy": figure.mean, f"{kind}/worst_tenth": figure.worst_tenth}
    values |= {f"bytes/{channel}": sum(row[f"{channel}_bytes"] or 0 for row in rows) for channel in Channel}
    return values | {"flops": sum(row["flops"] or 0 for row in rows)}


def hyperparameters(settings: Settings) -> dict[str, str | float | bool]:
    """The settings without depth; several values of one are written as on the command line."""
    values: dict[str, Any] = settings.model_dump(mode="json", exclude_none=True)
    values |= values.pop("options")
    return {
        name: value if isinstance(value, str | int | float | bool) else ",".join(map(str, value))
        for name, value in values.items()
    }
