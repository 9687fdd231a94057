"""The progress of runs, live in a terminal."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedexperts.engine import Evaluation, Observer, Simulation


class ProgressDisplay(Observer):
    """A bar per run, one below the other; give the same object to each run within one `with`.

    `with ProgressDisplay() as display: run("fedavg", observers=[display])`. Silent without a terminal.
    Of many runs (`many`) only the present one has a bar, below one for all; each ends as a line, terminal or not.
    """

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console()
        # Drawn by rich's own thread a few times a second: a round only writes down where it is.
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}", markup=False),
            TextColumn("{task.fields[accuracy]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=4,
            speed_estimate_period=3600,  # a run of many may take minutes
            expand=True,
            disable=not console.is_terminal,
        )
        self._name = ""
        self._all: TaskID | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def many(self, done: int, total: int) -> None:
        """The runs from here on are some of many, of which so many are done."""
        self._all = self._progress.add_task("all runs", completed=done, total=total, loss="", accuracy="")

    def expect(self, name: str) -> None:
        """What the next run is called, if its method's name would not do."""
        self._name = name

    def finished(self, line: str) -> None:
        """A run of many is over: its bar gives way to a line."""
        assert self._all is not None
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        self._progress.advance(self._all)
        self.say(line)

    def say(self, line: str) -> None:
        """Something for the reader, above the bars."""
        self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def started(self, simulation: Simulation) -> None:
        self._task = self._progress.add_task(
            self._name or simulation.method.title or simulation.method.name,
            completed=simulation.round,
            total=simulation.settings.rounds,
            loss="loss –",
            accuracy="test –",
        )

    def evaluated(self, round_number: int, results: list[Evaluation]) -> None:
        accuracy = sum(result.test_correct / result.test_samples for result in results) / len(results)
        assert self._task is not None
        self._progress.update(self._task, accuracy=f"test {100 * accuracy:.2f} %")

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        assert self._task is not None
        mean = f"loss {sum(losses.values()) / len(losses):.4f}" if losses else "loss –"  # some rounds train nobody
        self._progress.update(self._task, completed=round_number, loss=mean)
