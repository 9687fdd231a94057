"""What a finished run is good for: predictions, models to take elsewhere, clients that join."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import own
import pytest
import torch

import fedexperts
from fedexperts.errors import DataError, MethodError, ModelError, SavedStateError, SettingsError
from fedexperts.methods import part_of

Cli = Callable[..., tuple[int, str, str]]
QUICK = {"rounds": 2, "batch_size": 16, "device": "cpu"}
LIGHT = {"fedemoe": {"width": 8, "hidden": 4, "limit": 3, "depth": 1, "rounds": 1}, "pm-moe": {"gate_epochs": 1}}


def clients(names: tuple[str, ...] = own.NAMES) -> list[fedexperts.Client]:
    return [
        fedexperts.Client(name, own.pictures(30 + k, k), own.pictures(12, 50 + k), own.flat)
        for k, name in enumerate(names)
    ]


@pytest.fixture(scope="module")
def task() -> fedexperts.Task:
    return fedexperts.Task.of_clients(clients(), common_model=own.flat)


def rising(result: fedexperts.Result) -> fedexperts.Result:
    """The same run with validation accuracies that rise, so that PM-MoE's clients use their mixtures."""
    rows = [row | {"validation_accuracy": row["round"] / 9} for row in result.history]
    return replace(result, record=replace(result.record, rows=rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedMoE on a folder of clients, and beside it the folder."""
    place = tmp_path_factory.mktemp("finished")
    own.folder_of_arrays(place / "clients")
    own.folder_of_arrays(place / "more", ("east",))
    task = fedexperts.Task.of(data=f"{place}/clients/", model="own:flat")
    fedexperts.run("fedmoe", task, out=place / "run", shared_model="own:flat", gate_width=4, **QUICK)
    return place


@pytest.mark.parametrize("method", ["fedmoe", "fedmoe-da", "pm-moe", "fedemoe", "fedrod", "gpfl"])
def test_an_exported_model_answers_as_in_its_run(method: str, task: fedexperts.Task, tmp_path: Path) -> None:
    result = rising(fedexperts.run(method, task, **{**QUICK, **LIGHT.get(method, {})}))
    result.export("south", tmp_path / "model")
    x, _ = own.pictures(7, 9)
    expected = result.predict("south", x)
    model = fedexperts.load_exported(tmp_path / "model")
    assert np.array_equal(model.predict(x), expected)
    program = torch.export.load(tmp_path / "model" / "model.pt2").module()
    for few in (1, 7):
        np.testing.assert_allclose(program(torch.from_numpy(x[:few])), expected[:few], rtol=1e-4, atol=1e-6)
    assert not np.array_equal(result.predict("north", x), expected)
    card, holds = (tmp_path / "model" / "README.md").read_text(), "It also holds what the server sent for predictions"
    assert (holds in card) == (method == "pm-moe")
    assert method != "pm-moe" or {part_of(name) for name in model.received} == {"pool", "present"}


@pytest.mark.parametrize("method", ["fedmoe", "fedmoe-da", "pm-moe", "fedemoe"])
def test_onnx_answers_the_same(task: fedexperts.Task, tmp_path: Path, method: str) -> None:
    removing = {"denoise": 0.6} if method == "pm-moe" else {}  # so that one of two others is removed
    result = rising(fedexperts.run(method, task, **{**QUICK, **LIGHT.get(method, {}), **removing}))
    result.export("west", tmp_path / "model")
    session = onnxruntime.InferenceSession(str(tmp_path / "model" / "model.onnx"))
    x, _ = own.pictures(7, 9)
    [found] = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(found, result.predict("west", x), rtol=1e-4, atol=1e-6)


def test_texts_and_tables_are_exported_with_their_words_and_scales(tmp_path: Path) -> None:
    own.folder_of_texts(tmp_path / "texts")
    texts = fedexperts.run("fedper", fedexperts.Task.of(data=f"{tmp_path}/texts/"), **QUICK)
    asked = ["A cat1, or an owl?", ""]
    model = fedexperts.load_exported(texts.export("west", tmp_path / "t"))
    assert np.array_equal(model.predict(asked), texts.predict("west", asked))
    own.folder_of_tables(tmp_path / "tables")
    tables = fedexperts.run("fedper", fedexperts.Task.of(data=f"{tmp_path}/tables/"), **QUICK)
    rows = own.rows(5, 1)[0][:, ::-1]  # as the first client has them
    model = fedexperts.load_exported(tables.export("west", tmp_path / "u"))
    assert np.array_equal(model.predict(rows), tables.predict("west", rows))
    program = torch.export.load(tmp_path / "u" / "model.pt2").module()
    np.testing.assert_allclose(program(torch.tensor(rows.astype(np.float32))), model.predict(rows), rtol=1e-4)


def test_a_model_that_was_given_in_python_is_given_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = own.Net(3)
    one = fedexperts.Client("north", own.pictures(30, 0), own.pictures(12, 1), net, "fc")
    result = fedexperts.run("standalone", [one], **QUICK)
    result.export("north", tmp_path / "model")
    assert 'load_exported(".", model=…)' in (tmp_path / "model" / "README.md").read_text()
    x, _ = own.pictures(7, 9)
    model = fedexperts.load_exported(tmp_path / "model", model=own.Net(3), head="fc")
    assert np.array_equal(model.predict(x), result.predict("north", x))
    with pytest.raises(ModelError, match=r"'Net' was given in Python; give it again: load_exported\(.*, model=…\)"):
        fedexperts.load_exported(tmp_path / "model")
    with pytest.raises(ModelError, match=r"the model 'Net' is not the one that was saved: extractor\.net\.conv\.bias"):
        fedexperts.load_exported(tmp_path / "model", model=own.Net(4), head="fc").predict(x)
    with pytest.raises(SavedStateError, match="exists and is not an empty folder"):
        result.export("north", tmp_path / "model")
    for name in ("model.safetensors", "model.json"):
        (tmp_path / "model" / name).write_bytes((tmp_path / "model" / name).read_bytes()[:-40])
        with pytest.raises(SavedStateError, match="is cut off or changed"):
            fedexperts.load_exported(tmp_path / "model", model=own.Net(3), head="fc")
    with pytest.raises(SavedStateError, match="holds no exported model"):
        fedexperts.load_exported(tmp_path)


# --- joining


@pytest.mark.parametrize(
    ("method", "trained"),
    [
        ("fedmoe", ["local_expert", "gate", "head"]),
        ("fedper", ["head"]),
        ("fedavg", []),
        ("moon", []),  # it keeps an extractor, but uses the server's
        ("fedmoe-da", ["gate", "experts"]),
        ("standalone", ["extractor", "head"]),
    ],
)
def test_who_joins_has_the_shared_parts_and_trains_its_own(
    method: str, trained: list[str], task: fedexperts.Task
) -> None:
    result = fedexperts.run(method, task, **QUICK)
    before = {name: tensor.clone() for name, tensor in result.simulation.server.items()}
    joined = result.adapt(clients(("east",))[0], rounds=2)
    assert joined.trained == trained
    server = result.simulation.server
    assert all(torch.equal(server[name], tensor) for name, tensor in before.items())
    shared = {name for name in joined.model.tensors if part_of(name) not in trained and name in server}
    assert shared or method == "standalone"
    assert all(torch.equal(joined.model.tensors[name], server[name]) for name in shared)
    x, y = own.pictures(12, 50)
    accuracy = (joined.model.predict(x).argmax(1) == y).mean()
    assert accuracy == pytest.approx(joined.figures["last"].mean)
    again = result.adapt(clients(("east",))[0], rounds=2)
    assert np.array_equal(again.model.predict(x), joined.model.predict(x))


def test_who_cannot_join_is_told(task: fedexperts.Task) -> None:
    result = fedexperts.run("fedavg", task, **QUICK)
    new = fedexperts.Client("east", own.pictures(30, 0), own.pictures(12, 1))
    for client, values, kind, says in (
        (clients()[0], {}, DataError, "the run has a client 'north' already"),
        (fedexperts.Client("east", own.rows(9, 0), own.rows(3, 1)), {}, DataError, "client east has other samples"),
        (fedexperts.Client("east", new.train, new.test, "cnn5"), {}, MethodError, "client east cannot have the run's"),
        (fedexperts.Client("east", (new.train[0], ["x"] * 30), new.test), {}, DataError, "has the label 'x'"),
        (new, {"rate": 1}, SettingsError, "unknown setting 'rate' of how to train"),
    ):
        with pytest.raises(kind, match=says):
            result.adapt(client, **values)
    pool = fedexperts.run("pm-moe", task, **QUICK, gate_epochs=1)
    with pytest.raises(MethodError, match="nobody can join a PM-MoE run"):
        pool.adapt(new)


def test_nothing_of_who_joins_leaves_it(task: fedexperts.Task) -> None:
    """Methods that make all replies of a stack at once are no exception."""
    for method in ("fedkd", "fedemoe", "fedavg"):
        result = fedexperts.run(method, task, **QUICK | LIGHT.get(method, {}))
        joined = result.adapt(clients(("east",))[0], rounds=1)
        assert sum(row["up_bytes"] for row in joined.history) == 0, method


def test_who_has_a_model_that_nobody_trained_cannot_join(task: fedexperts.Task) -> None:
    """FedEMoE's server has an extractor for each model that its clients have."""
    result = fedexperts.run("fedemoe", task, **QUICK | LIGHT["fedemoe"])
    new = fedexperts.Client("east", own.pictures(30, 0), own.pictures(12, 1), own.Net(2), "fc")
    with pytest.raises(MethodError, match=r"no extractor for client east, whose model is .*Net.*; .* are own:flat"):
        result.adapt(new)


# --- the command line


def test_predict_export_and_adapt(cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = folder / "clients/south/test.npz"
    code, out, _ = cli("predict", folder / "run", "--client", "south", asked, "--out", "answers.csv")
    assert (code, out) == (0, "12 answers: answers.csv\n")
    header, *lines = csv.reader(Path("answers.csv").read_text().splitlines())
    assert header == ["sample", "class", "0", "1", "2"]
    expected = fedexperts.load(folder / "run").predict("south", np.load(asked)["x"])
    assert [line[1] for line in lines] == [str(number) for number in expected.argmax(1)]
    np.testing.assert_allclose([[float(value) for value in line[2:]] for line in lines], expected, atol=1e-6)
    code, out, _ = cli("predict", folder / "run", "--client", 1, asked)
    assert (code, out) == (0, Path("answers.csv").read_text())

    code, out, _ = cli("export", folder / "run", "--client", "south", "model")
    assert code == 0
    assert out.startswith("model: model (README.md, model.json")
    assert cli("predict", "model", asked)[1] == Path("answers.csv").read_text()
    assert json.loads(Path("model/model.json").read_text())["client"]["name"] == "south"

    code, out, _ = cli("adapt", folder / "run", "--data", folder / "more/east", "--rounds", 2)
    assert code == 0
    assert "client east: trained local_expert, gate, head; test accuracy: last" in out
    assert cli("predict", "east-model", folder / "more/east/test.npz")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("predict", "run", "x.npz"), "whose model? --client is one of: north, south, west"),
        (("predict", "run", "--client", "noth", "x.npz"), "there is no client 'noth'; did you mean 'north'"),
        (("predict", "run", "--client", "north", "x.npz"), "there is no file x.npz"),
        (("predict", "nowhere", "x.npz"), "there is no run folder nowhere"),
        (("predict", ".", "--client", "north", "x.npz"), "it holds several, name one: run"),
        (("export", "run", "--client", "north", "run"), "run exists and is not an empty folder"),
        (("adapt", "run", "--data", "clients/north"), "the run has a client 'north' already"),
        (("adapt", "run", "--data", "nowhere"), "there is no folder"),
        (("adapt", "run", "--data", "more/east", "--out", "clients"), "clients exists and is not an empty folder"),
    ],
)
def test_what_cannot_be_done_says_so_in_a_line(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(folder)
    code, _, err = cli(*words)
    assert (code, err.count("\n")) == (2, 1), err
    assert says in err
