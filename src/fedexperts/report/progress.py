"""The progress of runs, live in a terminal."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedexperts.engine import Evaluation, Observer, Simulation


class ProgressDisplay(Observer):
    """A bar per run, one below the other; give the same object to each run within one `with`.

    `with ProgressDisplay() as display: run("fedavg", observers=[display])`. Silent without a terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console()
        # Drawn by rich's own thread a few times a second: a round only writes down where it is.
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}", markup=False),
            TextColumn("test {task.fields[accuracy]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=4,
            expand=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def started(self, simulation: Simulation) -> None:
        self._task = self._progress.add_task(
            simulation.method.title or simulation.method.name,
            completed=simulation.round,
            total=simulation.settings.rounds,
            loss="–",
            accuracy="–",
        )

    def evaluated(self, round_number: int, results: list[Evaluation]) -> None:
        accuracy = sum(result.test_correct / result.test_samples for result in results) / len(results)
        self._progress.update(self._task, accuracy=f"{100 * accuracy:.2f} %")

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        loss = sum(losses.values()) / len(losses)
        self._progress.update(self._task, completed=round_number, loss=f"{loss:.4f}")
