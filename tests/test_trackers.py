"""Trackers, each read back with the tool's own library. MLflow and W&B are large: their tests want them installed."""

import json
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlflow
import pytest
from support import make_task

import fedexperts
from fedexperts.engine import Observer
from fedexperts.errors import DivergedError, SettingsError
from fedexperts.trackers import MLflow, TensorBoard, Tracker, WandB, trackers

Cli = Callable[..., tuple[int, str, str]]
SMALL = {"rounds": 4, "checkpoint_every": 2, "batch_size": 16, "device": "cpu", "executor": "loop"}
IN_EVERY_ROUND = {
    "train/loss", "validation/accuracy", "validation/worst_tenth", "test/accuracy", "test/worst_tenth", "bytes/up",
    "bytes/down", "bytes/peer", "flops",
}  # fmt: skip
AT_THE_END = {f"figures/{kind}{what}" for kind in ("last", "selected", "peak") for what in ("", "_worst_tenth")}
Series = dict[str, dict[int, float]]


class Interrupts(Observer):
    """Somebody presses Ctrl-C after the third round, of which only two are in the checkpoint."""

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        if round_number == 3:
            raise KeyboardInterrupt


def run(folder: Path, *observers: Observer, **values: Any) -> fedexperts.Result:
    return fedexperts.run("fedper", make_task(), out=folder, observers=observers, **{**SMALL, **values})


def interrupted_and_resumed(folder: Path, first: list[Tracker], then: list[Tracker]) -> fedexperts.Result:
    with pytest.raises(KeyboardInterrupt):
        run(folder, *first, Interrupts())
    return fedexperts.resume(folder, then, task=make_task())


def assert_whole(series: Series, result: fedexperts.Result) -> None:
    """Every figure of every round, and the run's own at its end."""
    assert set(series) - {"seconds"} == IN_EVERY_ROUND | AT_THE_END
    for name in IN_EVERY_ROUND:
        assert list(series[name]) == [1, 2, 3, 4], name
    for number in (1, 2, 3, 4):
        rows = [row for row in result.history if row["round"] == number]
        tested = [row["test_accuracy"] or 0 for row in rows]
        assert series["test/accuracy"][number] == pytest.approx(sum(tested) / 6)
        assert series["test/worst_tenth"][number] == pytest.approx(min(tested))
        assert series["bytes/up"][number] == pytest.approx(sum(row["up_bytes"] or 0 for row in rows))
    for kind, figure in result.figures.items():
        assert series[f"figures/{kind}"] == {4: pytest.approx(figure.mean)}


def scalars(folder: Path) -> Series:
    """By TensorBoard's own reader, which fails here if a step is there twice."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    found = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    assert all(len({event.step for event in series}) == len(series) for series in found.values())
    return {name: {event.step: event.value for event in series} for name, series in found.items()}


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    result = run(tmp_path / "run", TensorBoard(tmp_path / "logs"), lr=0.05)
    series = scalars(tmp_path / "logs")
    assert_whole(series, result)
    assert list(series["seconds"]) == [1, 2, 3, 4]
    events = EventAccumulator(str(tmp_path / "logs")).Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["lr"].number_value == 0.05
    assert settings["model"].string_value == "cnn5/8,cnn4/8"
    assert settings["method"].string_value == "fedper"


@pytest.mark.parametrize("from_the_start", [True, False])
def test_tensorboard_goes_on(tmp_path: Path, from_the_start: bool) -> None:
    first: list[Tracker] = [TensorBoard()] if from_the_start else []
    result = interrupted_and_resumed(tmp_path / "run", first, [TensorBoard()])
    series = scalars(tmp_path / "run" / "tensorboard")
    assert_whole(series, result)
    assert list(series["seconds"]) == ([1, 2, 3, 4] if from_the_start else [3, 4])  # the history has no times


def test_tensorboard_shows_no_round_that_was_not_noted(tmp_path: Path) -> None:
    """Killed between writing a round and noting it: the round is written again, and shown once."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", TensorBoard(), Interrupts())
    note = tmp_path / "run" / "tensorboard.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"rounds": 2}))
    result = fedexperts.resume(tmp_path / "run", [TensorBoard()], task=make_task())
    assert_whole(scalars(tmp_path / "run" / "tensorboard"), result)


def test_a_run_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="TensorBoard needs a folder"):
        fedexperts.run("fedper", make_task(), observers=[TensorBoard()], **SMALL)
    result = fedexperts.run("fedper", make_task(), observers=[TensorBoard(tmp_path)], **SMALL)
    assert_whole(scalars(tmp_path), result)


def test_command_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ("--clients", 4, "--rounds", 2, "--device", "cpu", "--track", "tensorboard")
    assert cli("compare", "fedper", "standalone", *quick, "--out", "both")[0] == 0
    for method in ("fedper", "standalone"):
        assert list(scalars(Path("both", method, "tensorboard"))["test/accuracy"]) == [1, 2]
    code, _, err = cli("resume", "both/fedper", "--track", "tensorboard")
    assert (code, "is finished" in err) == (2, True)
    code, _, err = cli("run", "fedper", "--track", "tensorbord")
    assert (code, "did you mean 'tensorboard'" in err) == (2, True)
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    code, _, err = cli("run", "fedper", "--track", "tensorboard,mlflow", "--out", "none")
    assert (code, "pip install 'fedexperts[mlflow]'" in err) == (2, True)
    assert not Path("none").exists()


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", MLflow(tmp_path / "store"), Interrupts())
    client = mlflow.MlflowClient((tmp_path / "store").as_uri())
    experiment = client.get_experiment_by_name("fedexperts").experiment_id
    assert [found.info.status for found in client.search_runs(experiment)] == ["KILLED"]
    (tmp_path / "run" / "mlflow.json").write_text(
        json.dumps(json.loads((tmp_path / "run" / "mlflow.json").read_text()) | {"rounds": 2})  # killed before the note
    )
    result = fedexperts.resume(tmp_path / "run", [MLflow(tmp_path / "store")], task=make_task())

    [found] = client.search_runs(experiment)
    assert found.info.status == "FINISHED"
    assert found.data.params["method"] == "fedper"
    assert found.data.params["model"] == "cnn5/8,cnn4/8"
    assert found.data.params["rounds"] == "4"
    series: Series = {}
    for name in found.data.metrics:
        points = client.get_metric_history(found.info.run_id, name)
        series[name] = {point.step: point.value for point in points}
        assert len(points) == len(series[name]), name
    assert_whole(series, result)
    kept = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert kept == {"report.html", "settings.toml", "history.csv", "summary.json"}


def test_mlflow_knows_what_failed_and_begins_again_what_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with pytest.raises(DivergedError):
        run(tmp_path / "diverged", MLflow(tmp_path / "one"), lr=1e30)
    client = mlflow.MlflowClient((tmp_path / "one").as_uri())
    experiment = client.get_experiment_by_name("fedexperts").experiment_id
    assert [found.info.status for found in client.search_runs(experiment)] == ["FAILED"]

    interrupted_and_resumed(tmp_path / "run", [MLflow(tmp_path / "one")], [MLflow(tmp_path / "other")])
    client = mlflow.MlflowClient((tmp_path / "other").as_uri())
    [found] = client.search_runs(client.get_experiment_by_name("fedexperts").experiment_id)
    assert [point.step for point in client.get_metric_history(found.info.run_id, "flops")] == [1, 2, 3, 4]


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for part in ("first", "then"):  # two parts of one second would have the same folder
        (tmp_path / part).mkdir()
    first, then = WandB(folder=tmp_path / "first"), WandB(folder=tmp_path / "then")
    result = interrupted_and_resumed(tmp_path / "run", [first], [then])
    files = [next(tmp_path.glob(f"{part}/wandb/offline-run-*/*.wandb")) for part in ("first", "then")]
    assert files[0].name == files[1].name  # it is the run's: one run, in two parts
    series: Series = {}
    for file in files:
        for row in recorded(file):
            step = row.pop("_step")
            for name in IN_EVERY_ROUND & row.keys():
                assert step not in series.setdefault(name, {}), (name, step)
                series[name][step] = row[name]
    summary = {f"figures/{kind}": {4: figure.mean} for kind, figure in result.figures.items()}
    summary |= {f"figures/{kind}_worst_tenth": {4: figure.worst_tenth} for kind, figure in result.figures.items()}
    assert_whole({**series, **summary}, result)


def recorded(file: Path) -> list[dict[str, Any]]:
    """The history in a W&B file: LevelDB's log (blocks of 32 KiB, pieces of records) of W&B's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole, rows = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := -at % 32768) and left < 7:
            at += left
            continue
        _, length, piece = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if piece in (1, 4):  # a whole record, or the last piece of one
            record, whole = Record.FromString(whole), b""
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            rows += [{name: json.loads(value) for name, value in items.items()}] if items else []
    return rows


def test_names() -> None:
    assert trackers(None) == []
    with pytest.raises(SettingsError, match=r"no tracker 'comet' \(there are: tensorboard, mlflow, wandb\)"):
        trackers("comet")
