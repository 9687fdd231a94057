"""The public API, from a task to predictions."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import make_task

import fedexperts
from fedexperts.api import claim, run_or_resume, settings_for
from fedexperts.engine import Observer
from fedexperts.errors import DataError, DivergedError, SavedStateError, SettingsError
from fedexperts.measure import Record

QUICK = {"rounds": 3, "batch_size": 32, "device": "cpu"}


@pytest.fixture(scope="module")
def task() -> fedexperts.Task:
    return fedexperts.Task.of(data="digits", clients=4, classes_per_client=3, model="cnn5,cnn4")


def test_run_returns_history_clients_predictions_and_a_page(task: fedexperts.Task, tmp_path: Path) -> None:
    result = fedexperts.run("fedmoe", task, gate_width=8, **QUICK)
    assert len(pd.DataFrame(result.history)) == 3 * 4
    assert result.figures["last"].round == 3
    assert len(result.clients) == 4
    assert result.clients[0]["gate.2.bias"].shape == (8,)
    own = task.clients[1].test
    probabilities = result.predict(1, task.dataset.inputs[own])
    assert probabilities.shape == (len(own), 10)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    accuracy = (probabilities.argmax(1) == task.dataset.labels[own]).mean()
    assert accuracy == pytest.approx(result.figures["last"].clients[1])
    assert "FedMoE" in result.report(tmp_path / "page.html").read_text()


def test_a_saved_run_is_complete_and_loads_again(task: fedexperts.Task, tmp_path: Path) -> None:
    result = fedexperts.run("fedmoe", task, out=tmp_path / "run", **QUICK)
    names = {"settings.toml", "history.csv", "labels.csv", "summary.json", "state"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names
    loaded = fedexperts.load(tmp_path / "run")
    assert loaded.history == result.history
    assert loaded.figures == result.figures
    x = task.dataset.inputs[:5]
    assert np.array_equal(loaded.predict(2, x), result.predict(2, x))


def test_saved_settings_repeat_the_run(task: fedexperts.Task, tmp_path: Path) -> None:
    fedexperts.run("fedmoe", task, out=tmp_path / "first", gate_lr=0.2, **QUICK)
    settings = fedexperts.Settings.from_toml(tmp_path / "first" / "settings.toml")
    from fedexperts.api import execute

    execute(settings, folder=tmp_path / "second")
    for name in ("history.csv", "settings.toml", "labels.csv"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_resume_of_a_run_that_was_stopped_before_its_first_checkpoint(task: fedexperts.Task, tmp_path: Path) -> None:
    fedexperts.run("fedavg", task, out=tmp_path / "whole", **QUICK)
    fedexperts.run("fedavg", task, out=tmp_path / "run", **QUICK)
    for path in (tmp_path / "run" / "state").iterdir():
        path.unlink()
    (tmp_path / "run" / "summary.json").unlink()
    fedexperts.resume(tmp_path / "run")
    assert (tmp_path / "run" / "history.csv").read_bytes() == (tmp_path / "whole" / "history.csv").read_bytes()


def test_where_a_run_is_computed_does_not_make_it_another(task: fedexperts.Task, tmp_path: Path) -> None:
    settings = settings_for("fedavg", task.settings.model_dump() | QUICK)
    whole = run_or_resume(settings, tmp_path / "whole", task)
    free = {"executor": "loop", "checkpoint_every": 1, "data_dir": tmp_path, "profile": True}
    elsewhere = settings.model_copy(update=free)
    before = (tmp_path / "whole" / "history.csv").stat().st_mtime_ns
    assert run_or_resume(elsewhere, tmp_path / "whole", task).rows == whole.rows
    assert (tmp_path / "whole" / "history.csv").stat().st_mtime_ns == before

    class Stop(Observer):
        def ended(self, round_number: int, losses: object) -> None:
            if round_number == 2:
                raise KeyboardInterrupt

    often = settings.model_copy(update={"checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        run_or_resume(often, tmp_path / "run", task, [Stop()])
    continued = run_or_resume(elsewhere, tmp_path / "run", task)
    assert [row["round"] for row in continued.rows] == [row["round"] for row in whole.rows]
    assert 'executor = "loop"' in (tmp_path / "run" / "settings.toml").read_text()
    assert continued.spent is not None
    assert continued.spent.rounds == 2  # those of the process that ended it
    assert Record.load(tmp_path / "run").spent == continued.spent
    with pytest.raises(SavedStateError, match=r"other settings \(rounds\)"):
        run_or_resume(settings.model_copy(update={"rounds": 4}), tmp_path / "run", task)


def test_a_run_from_before_an_option_was_there_is_as_if_it_had_its_default(
    task: fedexperts.Task, tmp_path: Path
) -> None:
    class Stop(Observer):
        def ended(self, round_number: int, losses: object) -> None:
            if round_number == 2:
                raise KeyboardInterrupt

    settings = settings_for("fml", task.settings.model_dump() | QUICK | {"checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        run_or_resume(settings, tmp_path / "run", task, [Stop()])
    for file in ("settings.toml", "state/checkpoint.json"):
        path = tmp_path / "run" / file
        text = path.read_text()
        assert "alpha_local" in text
        path.write_text(text.replace("alpha_local = 0.5\n", "").replace('"alpha_local": 0.5, ', ""))
        assert "alpha_local" not in path.read_text()
    run_or_resume(settings, tmp_path / "run", task)
    other = settings.model_copy(update={"options": settings.options | {"alpha_local": 0.4}})
    with pytest.raises(SavedStateError, match=r"other settings \(options\)"):
        run_or_resume(other, tmp_path / "run", task)


def test_a_diverged_run_is_not_trained_again(task: fedexperts.Task, tmp_path: Path) -> None:
    settings = settings_for("standalone", task.settings.model_dump() | QUICK | {"lr": 1e8})
    with pytest.raises(DivergedError, match="the loss of client") as first:
        run_or_resume(settings, tmp_path / "run", task)
    before = (tmp_path / "run" / "labels.csv").stat().st_mtime_ns
    with pytest.raises(DivergedError) as second:
        run_or_resume(settings, tmp_path / "run", task)
    assert str(first.value) == str(second.value)
    assert (tmp_path / "run" / "labels.csv").stat().st_mtime_ns == before


def test_an_existing_folder_is_not_written_over(task: fedexperts.Task, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SavedStateError, match="exists and is not an empty folder"):
        fedexperts.run("fedavg", task, out=tmp_path, **QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_settings_of_the_task_cannot_be_given_twice(task: fedexperts.Task) -> None:
    with pytest.raises(SettingsError, match="clients, seed belong to the task"):
        fedexperts.run("fedavg", task, clients=3, seed=1)


def test_unknown_settings_suggest_the_nearest(task: fedexperts.Task) -> None:
    with pytest.raises(SettingsError, match="unknown setting 'gate_wdth' of fedmoe; did you mean 'gate_width'"):
        fedexperts.run("fedmoe", task, gate_wdth=3)


@pytest.mark.parametrize(
    ("client", "inputs", "says"),
    [
        (9, np.zeros((1, 1, 8, 8), np.uint8), "there is no client 9"),
        (0, np.zeros((1, 1, 8, 8), np.float32), "takes uint8 images"),
        (0, np.zeros((8, 8), np.uint8), r"shape \(samples, 1, 8, 8\)"),
    ],
)
def test_predict_says_what_it_takes(task: fedexperts.Task, client: int, inputs: np.ndarray, says: str) -> None:
    result = fedexperts.run("standalone", task, **QUICK | {"rounds": 1})
    with pytest.raises(DataError, match=says):
        result.predict(client, inputs)


def test_a_task_of_ones_own_is_given_again(tmp_path: Path) -> None:
    own = make_task()
    result = fedexperts.run("standalone", own, out=tmp_path / "run", **QUICK)
    assert fedexperts.load(tmp_path / "run", task=own).figures == result.figures
    assert fedexperts.resume(tmp_path / "run", task=own).record.seconds == result.record.seconds > 0
    with pytest.raises(SavedStateError, match="is not the data"):
        fedexperts.load(tmp_path / "run")


def test_numbered_folders_are_never_shared(tmp_path: Path) -> None:
    claimed = [claim(tmp_path / "runs" / "mine", numbered=True)[0].name for _ in range(3)]
    assert claimed == ["mine-001", "mine-002", "mine-003"]


@pytest.mark.parametrize("name", ["settings.toml", "summary.json", "labels.csv", "history.csv"])
def test_a_cut_off_file_of_a_run_is_an_error(task: fedexperts.Task, tmp_path: Path, name: str) -> None:
    fedexperts.run("standalone", task, out=tmp_path / "run", **QUICK)
    path = tmp_path / "run" / name
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]) if name == "settings.toml" else path.read_text()[:-9])
    with pytest.raises(SavedStateError, match="cut off"):
        fedexperts.load(tmp_path / "run")


def test_predict_in_any_precision(task: fedexperts.Task) -> None:
    for precision in ("float64", "bfloat16"):
        result = fedexperts.run("fedmoe", task, precision=precision, **QUICK | {"rounds": 1})
        assert result.predict(0, task.dataset.inputs[:3]).shape == (3, 10)
