"""The progress display, on real runs."""

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedexperts.config import Settings, TaskSettings, TrainSettings
from fedexperts.engine import Observer, Simulation
from fedexperts.methods import method_class
from fedexperts.report.progress import ProgressDisplay
from fedexperts.task import Task

ROUNDS = 3


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.of(data="digits", clients=2, samples_per_client=20)


def simulation(task: Task, method: str, folder: Path, *observers: Observer) -> Simulation:
    settings = Settings(**task.settings.model_dump(), method=method, rounds=ROUNDS, device="cpu", executor="loop")
    assert settings.part(TaskSettings) == task.settings
    return Simulation(method_class(method)(settings.part(TrainSettings), {}), task, settings, observers, folder)


def terminal() -> Console:
    return Console(file=StringIO(), force_terminal=True, color_system=None, width=100)


def shown(console: Console) -> list[str]:
    """The lines of the last drawing."""
    assert isinstance(console.file, StringIO)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    return [line.split("\r")[-1] for line in text.rstrip().splitlines()]


def test_silent_without_a_terminal(task, tmp_path):
    console = Console(file=StringIO(), width=100)
    with ProgressDisplay(console) as display:
        simulation(task, "fedavg", tmp_path, display).run()
    assert console.file.getvalue() == ""


def test_a_bar_per_run_and_finished_bars_stay(task, tmp_path):
    console, last = terminal(), LastRound()
    with ProgressDisplay(console) as display:
        for method in ("fedavg", "standalone"):
            simulation(task, method, tmp_path / method, display, last).run()
    fedavg, standalone = shown(console)[-2:]
    assert fedavg.startswith("FedAvg")
    assert standalone.startswith("Standalone")
    for line in (fedavg, standalone):
        assert f"{ROUNDS}/{ROUNDS}" in line
    assert f"loss {last.loss:.4f}" in standalone
    assert f"test {100 * last.accuracy:.2f} %" in standalone


def test_a_continued_run_begins_where_it_is(task, tmp_path):
    continued, console = simulation(task, "fedavg", tmp_path), terminal()
    continued.step()
    with ProgressDisplay(console) as display:
        display.started(continued)
    assert f"1/{ROUNDS}" in shown(console)[-1]


def test_of_many_runs_the_present_one_has_a_bar_below_that_for_all(task, tmp_path):
    console = terminal()
    with ProgressDisplay(console) as display:
        display.many(done=3, total=5)
        display.expect("first case")
        simulation(task, "fedavg", tmp_path, display).run()
        display.finished("first case: done")
        display.expect("second case")
        display.started(simulation(task, "standalone", tmp_path / "other"))
    assert "first case: done" in shown(console)
    everything, present = shown(console)[-2:]
    assert everything.startswith("all runs")
    assert "4/5" in everything
    assert present.startswith("second case")


def test_lines_of_many_runs_are_printed_without_a_terminal_too(task, tmp_path):
    console = Console(file=StringIO(), width=20)
    with ProgressDisplay(console) as display:
        display.many(done=0, total=1)
        simulation(task, "fedavg", tmp_path, display).run()
        display.finished("a line that is longer than the terminal")
    assert console.file.getvalue() == "a line that is longer than the terminal\n"


class LastRound(Observer):
    """Writes down what the display should show."""

    def evaluated(self, round_number, results):
        self.accuracy = sum(r.test_correct / r.test_samples for r in results) / len(results)

    def ended(self, round_number, losses):
        self.loss = sum(losses.values()) / len(losses)
