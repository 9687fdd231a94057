"""Clients with data and models of their own, from arrays in Python and from folders on the command line."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import own
import pytest
import torch
from support import assert_close, finished, states

import fedexperts
from fedexperts.engine import Observer
from fedexperts.errors import DataError, MethodError, ModelError, SavedStateError, SettingsError

Cli = Callable[..., tuple[int, str, str]]
QUICK = {"rounds": 2, "batch_size": 16, "device": "cpu"}
SMALL = ("--rounds", 2, "--batch-size", 16, "--device", "cpu")


def clients(width: int = 16, seed: int = 0) -> list[fedexperts.Client]:
    """Three: two with modules of different sizes, one with a function."""
    torch.manual_seed(0)
    models = [(own.Net(3, width), "fc"), (own.Net(5), "fc"), (own.flat, None)]
    return [
        fedexperts.Client(name, own.pictures(30 + 3 * k, seed + k), own.pictures(12, 50 + k), *models[k])
        for k, name in enumerate(own.NAMES)
    ]


def test_test_stays_test_and_validation_is_cut_from_train() -> None:
    task = fedexperts.Task.of_clients(clients(), validation_fraction=0.2)
    for number, data in enumerate(task.clients):
        x, y = own.pictures(12, 50 + number)
        assert np.array_equal(task.dataset.inputs[data.test], x)
        assert np.array_equal(task.dataset.labels[data.test], y)
        train, _ = own.pictures(30 + 3 * number, number)
        both = np.sort(np.concatenate([data.train, data.validation]))
        assert np.array_equal(task.dataset.inputs[both], train)
        assert len(data.validation) == round(0.2 * len(train))
        assert set(task.dataset.labels[data.validation]) == {0, 1, 2}
    assert task.client_names == own.NAMES
    assert fedexperts.Task.of_clients(clients(), name="scans/v1.2").settings.data == "scans/v1.2"
    assert task.settings.model == ("Net", "Net 2", "own:flat")


OPTIONS = {"fedmoe": {"gate_width": (4,)}, "fedemoe": {"width": 12, "hidden": 6, "scale_every": 2}}


@pytest.mark.parametrize("method", ["fedmoe", "fedavg", "fml", "fedemoe"])
def test_own_models_train_together_as_one_by_one(method: str) -> None:
    task = fedexperts.Task.of_clients(clients(), common_model=own.flat)
    options = OPTIONS.get(method, {})
    one_by_one = states(finished(method, task, participation=1.0, options=options))
    assert_close(states(finished(method, task, participation=1.0, options=options, executor="stacked")), one_by_one)


def test_fedemoe_takes_own_models_as_trunks_and_shares_each_with_those_who_have_it(tmp_path: Path) -> None:
    places = clients()
    same = fedexperts.Client("east", own.pictures(30, 9), own.pictures(12, 99), places[1].model, "fc")
    result = fedexperts.run("fedemoe", [*places, same], out=tmp_path / "run", **OPTIONS["fedemoe"], **QUICK)
    trunks = {name.split(".")[1] for name in result.simulation.server if name.startswith("extractor.")}
    assert trunks == {"Net", "Net 2", "own:flat"}
    kinds = [{name.split(".")[1] for name in state if name.startswith("extractor.")} for state in result.clients]
    assert kinds == [{"Net"}, {"Net 2"}, {"own:flat"}, {"Net 2"}]
    conv = "extractor.Net 2.net.conv.weight"
    assert torch.equal(result.clients[1][conv], result.clients[3][conv])
    again = fedexperts.load(tmp_path / "run", task=[*places, same])
    x, _ = own.pictures(4, 7)
    assert np.array_equal(again.predict("east", x), result.predict("east", x))


def test_settings_of_a_module_that_begin_with_an_underscore_tell_models_apart() -> None:
    class Scaled(own.Net):
        def __init__(self, scale: float) -> None:
            super().__init__(3)
            self._scale = scale

        def forward(self, x):  # type: ignore[no-untyped-def]
            return super().forward(self._scale * x)

    data = (own.pictures(30, 0), own.pictures(12, 1))
    both = [fedexperts.Client(name, *data, Scaled(scale), "fc") for name, scale in (("a", 1.0), ("b", 9.0))]
    run = finished("standalone", fedexperts.Task.of_clients(both), executor="stacked")
    assert run.fleet.program(0) is not run.fleet.program(1)


def test_a_run_is_loaded_and_resumed_with_its_clients(tmp_path: Path) -> None:
    class Stop(Observer):
        def ended(self, round_number: int, losses: object) -> None:
            raise KeyboardInterrupt

    values = {**QUICK, "class_names": own.CLASSES, "validation_fraction": 0.2, "checkpoint_every": 1}
    whole = fedexperts.run("fedproto", clients(), out=tmp_path / "whole", **values)
    with pytest.raises(KeyboardInterrupt):
        fedexperts.run("fedproto", clients(), out=tmp_path / "run", observers=[Stop()], **values)
    with pytest.raises(DataError, match=r"the clients of 'own' were given in Python; give them again"):
        fedexperts.resume(tmp_path / "run")
    fedexperts.resume(tmp_path / "run", task=clients())
    assert (tmp_path / "run/history.csv").read_bytes() == (tmp_path / "whole/history.csv").read_bytes()
    assert (tmp_path / "run/labels.csv").read_text().splitlines()[1].startswith("north,")
    again = fedexperts.load(tmp_path / "run", task=clients())
    assert again.record.client_names == list(own.NAMES)
    assert again.record.fingerprint == whole.record.fingerprint
    assert again.simulation.task.dataset.class_names == own.CLASSES
    x, _ = own.pictures(5, 9)
    assert np.array_equal(again.predict("south", x), again.predict(1, x))
    with pytest.raises(SavedStateError, match=r"'own' is not the data that the run in .* was started with"):
        fedexperts.load(tmp_path / "run", task=clients(seed=1))
    with pytest.raises(SavedStateError, match="client north's model is not the one that the run was started with"):
        fedexperts.load(tmp_path / "run", task=clients(width=8)).predict("north", x)
    with pytest.raises(DataError, match="there is no client 'nort'; did you mean 'north'"):
        again.predict("nort", x)


def test_widths_that_do_not_fit_name_the_client() -> None:
    with pytest.raises(MethodError, match="but client north's Net ends in 16 features and the shared cnn5 in 500"):
        fedexperts.run("fedmoe", clients(), **QUICK)


def test_features_that_cannot_be_compared_name_the_client() -> None:
    with pytest.raises(MethodError, match="client south: fedproto compares features, but one client's have the width"):
        fedexperts.run("fedproto", clients(width=8)[:2], executor="loop", **QUICK)


def test_an_error_in_a_models_own_code_says_whose_it_is() -> None:
    class Fussy(own.Net):
        def forward(self, x):  # type: ignore[no-untyped-def]
            if self.training:
                raise RuntimeError("not today")
            return super().forward(x)

    one = fedexperts.Client("north", own.pictures(30, 0), own.pictures(12, 1), Fussy(3), "fc")
    with pytest.raises(RuntimeError, match="not today") as error:
        fedexperts.run("standalone", [one], executor="loop", **QUICK)
    assert error.value.__notes__ == ["while training client north"]


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: [], DataError, "there are no clients"),
        (lambda: clients()[:1] * 2, DataError, "two clients are called 'north'"),
        (
            lambda: [*clients(), fedexperts.Client("east", own.rows(9, 0), own.rows(3, 1))],
            DataError,
            r"client east, train has samples of shape \(2,\) \(numbers\), client north, train of shape \(1, 8, 8\)",
        ),
        (
            lambda: [fedexperts.Client("east", own.pictures(2, 0), own.pictures(3, 1))],
            DataError,
            "client east has 2 training and 3 test samples",
        ),
        (
            lambda: [fedexperts.Client("east", own.rows(9, 0), own.rows(3, 1), "cnn5")],
            SettingsError,
            "client east: model 'cnn5' is not for rows of a table; for them there is: mlp, mlp-wide",
        ),
        (
            lambda: [fedexperts.Client("east", own.rows(9, 0), own.rows(3, 1), own.Net(3), "fc")],
            ModelError,
            "client east: model 'Net' does not take samples of shape",
        ),
    ],
)
def test_what_is_wrong_with_clients_is_said(make: Callable[[], list], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        fedexperts.Task.of_clients(make())


# --- folders


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_of_tables(cli: Cli, here: Path) -> None:
    own.folder_of_tables(here / "tables")
    code, out, _ = cli("data", "--data", "tables/")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[-3:]] == list(own.NAMES)
    assert cli("run", "fedper", "--data", "tables/", *SMALL, "--out", "run")[0] == 0
    result = fedexperts.load("run")
    settings = result.record.settings
    assert (settings.data, settings.data_dir, settings.clients) == ("tables/", here, 3)
    assert (settings.model, settings.partition) == (("mlp",), "own")
    dataset = result.simulation.task.dataset
    assert dataset.columns == ("income", "age")
    training = np.concatenate([client.train for client in result.simulation.task.clients])
    np.testing.assert_allclose(result.simulation.data.inputs.numpy()[training].mean(0), 0, atol=1e-4)
    code, out, _ = cli("report", "run", "--out", "page.html")
    assert code == 0
    assert '"ticktext":["north","south","west"]' in Path("page.html").read_text()
    # What a run saves repeats it.
    assert cli("run", "fedper", "--config", "run/settings.toml", "--out", "again")[0] == 0
    assert Path("run/history.csv").read_bytes() == Path("again/history.csv").read_bytes()


def test_folders_of_texts_and_pictures(cli: Cli, here: Path) -> None:
    own.folder_of_texts(here / "texts")
    own.folder_of_pictures(here / "pictures", side=9)
    assert cli("run", "fedavg", "--data", "./texts", *SMALL, "--out", "t")[0] == 0
    assert fedexperts.load("t").record.settings.model == ("fasttext",)
    only_cats = [line for line in Path("texts/north/train.jsonl").read_text().splitlines() if '"label": "cat"' in line]
    Path("texts/north/train.jsonl").write_text("\n".join(only_cats))
    assert fedexperts.Task.of(data="texts/").settings.model == ("fasttext",)
    assert cli("run", "fedavg", "--data", here / "pictures", "--image-size", 6, *SMALL, "--out", "p")[0] == 0
    loaded = fedexperts.load("p")
    assert loaded.simulation.task.shape == (1, 6, 6)
    assert loaded.record.class_names == list(own.CLASSES)


def test_other_data_in_the_folder_are_an_error(cli: Cli, here: Path) -> None:
    own.folder_of_arrays(here / "clients")
    assert cli("run", "standalone", "--data", "clients/", "--model", "own:flat", *SMALL, "--out", "run")[0] == 0
    x, y = own.pictures(12, 99)
    np.savez("clients/west/test.npz", x=x, y=y)
    code, _, err = cli("predict", "run", "--client", "west", "clients/west/test.npz")
    assert (code, err.count("\n")) == (2, 1)
    assert "'clients/' is not the data that the run in run was started with" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--data", "clients"), "unknown data set 'clients'; a folder of clients is given with a slash: clients/."),
        (("--data", "client/"), "there is no folder"),
        (("--data", "clients/north"), "north is one client's folder"),
        (("--data", "clients/", "--clients", 5), "holds 3 clients, not 5; leave out --clients"),
        (("--data", "clients/", "--partition", "dirichlet"), "partition: the clients in clients/ have their own data"),
        (("--data", "clients/", "--alpha", 0.5), "alpha: the clients in clients/ have their own data"),
        (("--data", "clients/", "--model", "mlp"), "client north: model 'mlp' is not for images"),
        (("--data", "clients/", "--model", "own:Net"), "client north: model 'own:Net' cannot be made for samples"),
        (("--data", "clients/", "--model", "own:falt"), "own has no function 'falt'; did you mean 'flat'"),
        (("--partition", "own"), "the clients of 'digits' were given in Python"),
    ],
)
def test_what_cannot_run_says_so_in_a_line(cli: Cli, here: Path, words: tuple[object, ...], says: str) -> None:
    own.folder_of_arrays(here / "clients")
    code, _, err = cli("run", "fedavg", *words, *SMALL)
    assert (code, err.count("\n")) == (2, 1), err
    assert says in err
    assert not Path("runs").exists()
