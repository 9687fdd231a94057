"""Running a recipe: what is done is read, what was interrupted goes on, the rest is started."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from fedexperts import api, data
from fedexperts.config import TaskSettings, TrainSettings
from fedexperts.engine import Observer, specs_for
from fedexperts.errors import DivergedError
from fedexperts.measure import MEANING, STATE, Record
from fedexperts.methods import method_class
from fedexperts.recipes.plan import Cell
from fedexperts.report.progress import ProgressDisplay
from fedexperts.report.table import percent
from fedexperts.task import Task


@dataclass(frozen=True)
class Outcome:
    """What came of a cell: a record, or how it diverged, which is a result too."""

    cell: Cell
    record: Record | None
    diverged: str = ""

    def __str__(self) -> str:
        if self.record is None:
            return f"{self.cell.name}: diverged ({self.diverged})"
        figures = ", ".join(f"{kind} {percent(self.record.figures[kind].mean)}" for kind in MEANING)
        return f"{self.cell.name}: {figures} ({self.record.seconds:.1f} s)"


def reproduce(
    cells: Sequence[Cell], display: ProgressDisplay, observers: Sequence[Observer] = (), keep_models: bool = True
) -> list[Outcome]:
    """All wanted runs, and those of the others that are there already. What cannot run says so before anything does."""
    outcomes = {cell: found for cell in cells if (found := look(cell)) is not None}
    missing = [cell for cell in cells if cell.wanted and cell not in outcomes]
    load = cache(data.load)

    @lru_cache(maxsize=1)
    def task(settings: TaskSettings) -> Task:
        return Task.of(settings, load(settings.data, settings.data_dir, settings.download))

    for cell in missing:
        method = method_class(cell.method)(cell.settings.part(TrainSettings), cell.settings.options)
        specs_for(method, task(cell.settings.part(TaskSettings)))
    wanted = sum(cell.wanted for cell in cells)
    display.many(done=wanted - len(missing), total=wanted)
    for cell in missing:
        display.expect(cell.name)
        outcomes[cell] = _run(cell, task(cell.settings.part(TaskSettings)), [display, *observers])
        display.finished(str(outcomes[cell]))
        if not keep_models:
            shutil.rmtree(cell.folder / STATE, ignore_errors=True)
    return [outcomes[cell] for cell in cells if cell in outcomes]


def look(cell: Cell) -> Outcome | None:
    """What is in the cell's folder, if it is finished."""
    try:
        record = api.finished(cell.settings, cell.folder)
    except DivergedError as error:
        return Outcome(cell, None, str(error))
    return None if record is None else Outcome(cell, record)


def _run(cell: Cell, task: Task, observers: Sequence[Observer]) -> Outcome:
    try:
        return Outcome(cell, api.run_or_resume(cell.settings, cell.folder, task, observers))
    except DivergedError as error:
        return Outcome(cell, None, str(error))
