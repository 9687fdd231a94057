"""Running a recipe: what is done is read, what was interrupted goes on, the rest is started."""

import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, lru_cache
from multiprocessing import get_context
from pathlib import Path

from fedexperts import api, data
from fedexperts.config import TaskSettings, TrainSettings
from fedexperts.data import Dataset
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
    cells: Sequence[Cell],
    display: ProgressDisplay,
    observers: Sequence[Observer] = (),
    keep_models: bool = True,
    jobs: int = 1,
) -> list[Outcome]:
    """All wanted runs, and those of the others that are there already. What cannot run says so before anything does.

    With `jobs`, so many run side by side in processes of their own: one run seldom fills a large GPU.
    """
    outcomes = {cell: found for cell in cells if (found := look(cell)) is not None}
    missing = [cell for cell in cells if cell.wanted and cell not in outcomes]
    for cell in missing:
        method = method_class(cell.method)(cell.settings.part(TrainSettings), cell.settings.options)
        specs_for(method, _task(cell.settings.part(TaskSettings)))
    wanted = sum(cell.wanted for cell in cells)
    display.many(done=wanted - len(missing), total=wanted)
    if jobs > 1 and len(missing) > 1:
        # Not forked: a process that has used CUDA, or threads, must not be.
        with ProcessPoolExecutor(min(jobs, len(missing)), get_context("spawn")) as pool:
            running = {pool.submit(_run, cell, (), keep_models): cell for cell in missing}
            for done in as_completed(running):
                done.result()
                found = look(running[done])
                assert found is not None  # a run that has ended is there
                outcomes[running[done]] = found
                display.finished(str(found))
    else:
        for cell in missing:
            display.expect(cell.name)
            outcomes[cell] = _run(cell, [display, *observers], keep_models)
            display.finished(str(outcomes[cell]))
    return [outcomes[cell] for cell in cells if cell in outcomes]


@cache
def _dataset(name: str, data_dir: Path | None, download: bool) -> Dataset:
    return data.load(name, data_dir, download)


@lru_cache(maxsize=1)
def _task(settings: TaskSettings) -> Task:
    return Task.of(settings, _dataset(settings.data, settings.data_dir, settings.download))


def look(cell: Cell) -> Outcome | None:
    """What is in the cell's folder, if it is finished."""
    try:
        record = api.finished(cell.settings, cell.folder)
    except DivergedError as error:
        return Outcome(cell, None, str(error))
    return None if record is None else Outcome(cell, record)


def _run(cell: Cell, observers: Sequence[Observer], keep_models: bool) -> Outcome:
    try:
        record = api.run_or_resume(cell.settings, cell.folder, _task(cell.settings.part(TaskSettings)), observers)
        return Outcome(cell, record)
    except DivergedError as error:
        return Outcome(cell, None, str(error))
    finally:
        if not keep_models and look(cell) is not None:
            shutil.rmtree(cell.folder / STATE, ignore_errors=True)
