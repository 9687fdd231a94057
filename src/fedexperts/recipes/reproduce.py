"""Running recipes: what is done is read, what was interrupted goes on, the rest is started."""

import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from multiprocessing import active_children, get_context
from pathlib import Path

from fedexperts import api, data
from fedexperts.config import TaskSettings, TrainSettings
from fedexperts.data import Dataset
from fedexperts.engine import Observer, specs_for
from fedexperts.errors import DivergedError, RoomError, SavedStateError, SettingsError
from fedexperts.measure import MEANING, STATE, Record
from fedexperts.methods import method_class
from fedexperts.recipes.plan import Cell
from fedexperts.replay import give_back, ran_out
from fedexperts.report.progress import ProgressDisplay
from fedexperts.report.table import percent
from fedexperts.task import Task
from fedexperts.trackers import Tracker


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
    plans: Sequence[Sequence[Cell]],
    display: ProgressDisplay,
    observers: Sequence[Observer] = (),
    keep_models: bool = True,
    jobs: int = 1,
    trackers: Sequence[Tracker] = (),
    train: bool = True,
) -> list[list[Outcome]]:
    """Of each plan all wanted runs, and those of the others that are there already. What several show is run once.

    What cannot run says so before anything does. With `jobs`, so many run side by side in processes of their own: one
    run seldom fills a large GPU. Of all observers only trackers go there. Unless `train`, only what is there counts.
    """
    cells = [cell for plan in plans for cell in plan]
    _agree(cells)
    outcomes = {cell: found for cell in cells if (found := look(cell)) is not None}
    missing = _missing(cells, outcomes) if train else []
    done = len({cell for cell in cells if cell.wanted and cell in outcomes})
    for cell in missing:
        _check(cell, outcomes)
    display.many(done, total=done + len(missing))
    aside = jobs > 1 and len(missing) > 1
    alone = [display, *observers, *trackers]
    for outcome in _side_by_side(missing, jobs, trackers, display) if aside else _one_by_one(missing, alone, display):
        outcomes[outcome.cell] = outcome
        display.finished(str(outcome))
        if not keep_models:
            _drop_models(outcome.cell, missing, outcomes)
    return [[replace(outcomes[cell], cell=cell) for cell in plan if cell in outcomes] for plan in plans]


def _agree(cells: Sequence[Cell]) -> None:
    """Runs that would lie in one folder are one run."""
    known: dict[Cell, Cell] = {}
    for cell in cells:
        if (other := known.setdefault(cell, cell)).settings != cell.settings:
            raise SettingsError(
                f"'{cell.name}' is another run in another of these recipes ({_difference(cell, other)}), and both "
                f"would be in {cell.folder}; call one of them something else, or give each recipe an --out of its own"
            )


def _difference(cell: Cell, other: Cell) -> str:
    one, two = cell.settings.model_dump(), other.settings.model_dump()
    return ", ".join(f"{name} {one[name]!r} and {two[name]!r}" for name in one if one[name] != two[name])


def _missing(cells: Sequence[Cell], outcomes: dict[Cell, Outcome]) -> list[Cell]:
    """The wanted runs that are not there, each after those that it begins with; `outcomes` takes up those that are."""
    missing: dict[Cell, None] = {}

    def add(cell: Cell) -> None:
        if cell in outcomes or cell in missing:
            return
        for need in cell.needs:
            if need not in outcomes and (found := look(need)) is not None:
                outcomes[need] = found
            add(need)
        missing[cell] = None

    for cell in cells:
        if cell.wanted:
            add(cell)
    return list(missing)


def _check(cell: Cell, outcomes: Mapping[Cell, Outcome]) -> None:
    """Raise what is wrong with the run, as far as that can be known while those that it begins with are missing."""
    for need in cell.needs:
        if need in outcomes and not (need.folder / STATE).exists():
            raise SavedStateError(
                f"the models of {need.folder} were dropped, and {cell.name} begins with them; remove that folder, and "
                "it is trained again"
            )
    if all(need in outcomes for need in cell.needs):
        method = method_class(cell.method)(cell.settings.part(TrainSettings), cell.settings.options)
        specs_for(method, _task(cell.settings.part(TaskSettings)))


def _one_by_one(missing: Sequence[Cell], observers: Sequence[Observer], display: ProgressDisplay) -> Iterator[Outcome]:
    for cell in missing:
        display.expect(cell.name)
        yield _run(cell, observers)


def _side_by_side(
    missing: Sequence[Cell], jobs: int, trackers: Sequence[Tracker], display: ProgressDisplay
) -> Iterator[Outcome]:
    """Each as soon as those that it begins with are there. None is handed out before somebody is free for it.

    One that has no room beside the others goes on when one of them is over, with fewer side by side from then on. That
    it has none is an error if nobody else was allowed beside it.
    """
    waiting, running = dict.fromkeys(missing), dict[Future[Outcome | str], tuple[Cell, int]]()
    with _workers(min(jobs, len(missing))) as pool:
        while waiting or running:
            unfinished = {*waiting, *(cell for cell, _ in running.values())}
            ready = [cell for cell in waiting if unfinished.isdisjoint(cell.needs)]
            for cell in ready[: jobs - len(running)]:
                del waiting[cell]
                running[pool.submit(_beside, cell, trackers)] = cell, jobs
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                outcome, (cell, beside) = done.result(), running.pop(done)
                if isinstance(outcome, Outcome):
                    yield replace(outcome, cell=cell)
                    continue
                if beside == 1:
                    raise RoomError(f"{cell.name}: {outcome}")
                waiting, jobs = {cell: None, **waiting}, max(1, len(running))
                display.say(f"{cell.name} has no room beside the others and goes on later; side by side are now {jobs}")


@contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with an interrupt here, whoever else gets it: a run that is killed goes on where it was saved.

    With any other error those that are at work finish their run.
    """
    before = active_children()
    # Not forked: a process that has used CUDA, or threads, must not be.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _ignore_interrupts) as pool:
        try:
            yield pool
        except (KeyboardInterrupt, GeneratorExit):
            for process in set(active_children()).difference(before):
                process.terminate()
            raise


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _drop_models(cell: Cell, missing: Sequence[Cell], outcomes: Mapping[Cell, Outcome]) -> None:
    """Of a run that is over, and of those that it began with: of all that were made now and that nobody waits for."""
    waiting = {need for other in missing if other not in outcomes for need in other.needs}
    for over in (cell, *cell.needs):
        if over in missing and over not in waiting:
            shutil.rmtree(over.folder / STATE, ignore_errors=True)


@cache
def _dataset(name: str, data_dir: Path | None, download: bool) -> Dataset:
    return data.load(name, data_dir, download)


@lru_cache(maxsize=1)
def _task(settings: TaskSettings) -> Task:
    return Task.of(settings, _dataset(settings.data, settings.data_dir, settings.download))


def look(cell: Cell) -> Outcome | None:
    """What is in the cell's folder, if it is finished; nothing ever will be if it begins with a run that diverged."""
    for need in cell.needs:
        if (found := look(need)) is not None and found.record is None:
            return Outcome(cell, None, f"it begins with {found}")
    try:
        record = api.finished(cell.settings, cell.folder)
    except DivergedError as error:
        return Outcome(cell, None, str(error))
    return None if record is None else Outcome(cell, record)


def _beside(cell: Cell, observers: Sequence[Observer]) -> Outcome | str:
    """A run in a process of its own, or why there was no room for it. What it had is there for others then."""
    try:
        return _run(cell, observers)
    except (RoomError, RuntimeError, MemoryError) as error:
        if not (isinstance(error, RoomError) or ran_out(error)):
            raise
        return str(error).partition("\n")[0] or type(error).__name__
    finally:
        give_back()


def _run(cell: Cell, observers: Sequence[Observer]) -> Outcome:
    if (found := look(cell)) is not None:  # one that it begins with has diverged
        return found
    try:
        record = api.run_or_resume(cell.settings, cell.folder, _task(cell.settings.part(TaskSettings)), observers)
        return Outcome(cell, record)
    except DivergedError as error:
        return Outcome(cell, None, str(error))
