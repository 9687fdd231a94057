"""A run as it lies in its folder: what was asked, what happened, who had which data."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedexperts.config import Settings, TaskSettings, TrainSettings
from fedexperts.engine import Spent
from fedexperts.errors import FedExpertsError, SavedStateError
from fedexperts.files import write_atomically
from fedexperts.measure.figures import Curve, Figure, Kind, curve, totals
from fedexperts.measure.history import Row, read_history
from fedexperts.measure.privacy import Privacy
from fedexperts.methods import Method, method_class, registry

SETTINGS, HISTORY, LABELS, SUMMARY, STATE = (
    "settings.toml",
    "history.csv",
    "labels.csv",
    "summary.json",
    "state",
)
BEFORE = "before"
"""The folder inside a run's of the run that came before it: PM-MoE's first phase."""
DAMAGED = (ValueError, TypeError, LookupError, csv.Error)
"""What is raised where a run's file is cut off or changed."""
ROUNDED = 0.001
"""The part of all predictions that rounding may turn where the same models are asked by another executor."""


@dataclass(frozen=True)
class Record:
    """Everything that tables, figures and pages are made of."""

    settings: Settings
    title: str  # the method as people write it
    rows: Sequence[Row] = field(repr=False)
    counts: np.ndarray = field(repr=False)  # clients × classes
    class_names: Sequence[str]
    client_names: Sequence[str] = ()
    notes: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    privacy: Privacy | None = None  # if changes were clipped
    spent: Spent | None = None  # where the time went, of a run with --profile: in its last process
    fingerprint: int | None = None  # tells these data, split as they were, from others
    began_with: "Record | None" = field(default=None, repr=False)  # as it was given; else it is found by the folder
    folder: Path | None = None  # where it lies, with what analyses have found

    @cached_property
    def curve(self) -> Curve:
        return curve(self.rows)

    @cached_property
    def figures(self) -> dict[Kind, Figure]:
        return self.figures_by()

    def figures_by(self, samples: bool = False) -> dict[Kind, Figure]:
        """The rounds are the best by the plain mean over clients, or by samples."""
        return self.curve.figures(samples, registry().get(self.settings.method, Method).beforehand)

    def accuracy(self, kind: Kind, samples: bool = False) -> float:
        """The mean over clients, or over their test samples, in the round that is meant if they count so."""
        return self.figures_by(samples)[kind].over(samples)

    @cached_property
    def totals(self) -> dict[str, int]:
        return totals(self.rows)

    @cached_property
    def before(self) -> "Record | None":
        """The run whose end was this one's beginning, if it is at hand and has not become another one."""
        if self.began_with is not None:
            return self.began_with if self._goes_on_from(self.began_with) else None
        with suppress(FedExpertsError):  # its method may be gone, or that one's
            for method, place in _before(self):
                with suppress(FedExpertsError, OSError, *DAMAGED):
                    if (found := Record.load(place)).settings.method == method and self._goes_on_from(found):
                        return found
        return None

    def _goes_on_from(self, earlier: "Record") -> bool:
        """Whether it began with that one's models: for each client they were as good in the end."""
        first, last, samples = self.curve.test[0], earlier.curve.test[-1], self.curve.test_samples
        if self.curve.rounds[0] != 1 or first.shape != last.shape:  # in a federation a site may have come later
            return False
        if self.fingerprint not in (None, earlier.fingerprint):
            return False
        return bool(abs(first - last) @ samples <= ROUNDED * samples.sum())

    def save(self, folder: Path) -> None:
        """Write what is not written while the run goes on."""
        summary = {
            "method": self.settings.method,
            "title": self.title,
            "figures": {kind: asdict(figure) for kind, figure in self.figures.items()},
            "totals": self.totals,
            "notes": list(self.notes),
            "privacy": asdict(self.privacy) if self.privacy else None,
            "environment": self.environment,
            "seconds": self.seconds,
            "data": self.fingerprint,
            **({"spent": asdict(self.spent)} if self.spent else {}),
        }
        write_atomically(folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False))

    @classmethod
    def so_far(cls, folder: Path) -> "Record | None":
        """A run as it is now, finished or not; None before its first round with an evaluation has ended."""
        if (folder / SUMMARY).exists():
            return cls.load(folder)
        if not all((folder / name).exists() for name in (SETTINGS, HISTORY, LABELS)):
            return None
        settings = Settings.saved(folder / SETTINGS)
        rows = read_history(folder / HISTORY, growing=True)
        if not any(row["test_accuracy"] is not None for row in rows):
            return None
        classes, clients, counts = read_labels(folder / LABELS)
        title = method_class(settings.method).title or settings.method
        return cls(settings, title, rows, counts, classes, clients, folder=folder)

    @classmethod
    def load(cls, folder: Path) -> "Record":
        """A finished run from its folder."""
        for name in (SETTINGS, HISTORY, LABELS, SUMMARY):
            if not (folder / name).exists():
                raise SavedStateError(lacking(folder, name))
        settings = Settings.saved(folder / SETTINGS)
        try:
            summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
            names, clients, counts = read_labels(folder / LABELS)
            return cls(
                settings=settings,
                title=summary["title"],
                rows=read_history(folder / HISTORY),
                counts=counts,
                class_names=names,
                client_names=clients,
                notes=summary["notes"],
                environment=summary["environment"],
                seconds=summary["seconds"],
                privacy=Privacy(**summary["privacy"]) if summary.get("privacy") else None,
                spent=Spent(**summary["spent"]) if "spent" in summary else None,
                fingerprint=summary.get("data"),
                folder=folder,
            )
        except DAMAGED as error:
            raise SavedStateError(
                f"a file of the run in {folder} is cut off or changed ({error}); "
                f"if its state is whole, this makes it again: rm {folder / SUMMARY}; fedexperts resume {folder}"
            ) from None


def task_of(record: Record) -> TaskSettings:
    """What makes runs comparable: the same data, with the same owners, for the same models."""
    task: TaskSettings = record.settings.part(TaskSettings)
    return task.model_copy(update={"data_dir": None})  # the same files may lie elsewhere


def _before(run: Record) -> Iterator[tuple[str, Path]]:
    """The method of the run that came before, and where it may lie: runs that were moved still lie side by side."""
    method = method_class(run.settings.method)(run.settings.part(TrainSettings), run.settings.options)
    if run.folder is not None and (beginning := method.begins()) is not None:
        named = beginning.folder
        for place in [run.folder / BEFORE] if named is None else [named, run.folder.absolute().parent / named.name]:
            yield beginning.method, place


def lacking(folder: Path, name: str) -> str:
    """What to say of a folder that should be a run's and lacks a file."""
    if not folder.is_dir():
        return f"there is no run folder {folder}"
    if not (folder / SETTINGS).exists():
        runs = sorted(str(path.parent) for path in folder.glob(f"*/{SETTINGS}"))
        which = f"; it holds several, name one: {', '.join(runs)}" if runs else ""
        return f"{folder} is not a run folder: it has no {SETTINGS}{which}"
    return f"the run in {folder} is not finished (no {name}); continue it with: fedexperts resume {folder}"


def write_labels(path: Path, class_names: Sequence[str], client_names: Sequence[str], counts: np.ndarray) -> None:
    """Who has how many samples of which class."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["client", *class_names])
        writer.writerows([client, *row] for client, row in zip(client_names, counts.tolist(), strict=True))


def read_labels(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """The names of the classes and of the clients, and their counts."""
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return header[1:], [row[0] for row in rows], np.array([row[1:] for row in rows], dtype=np.int64)
