"""Real processes over TLS whose sites have their own texts and models, or go on from another run; and kill -9."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from consortium import Consortium
from own import NAMES, folder_of_texts

import fedexperts
from fedexperts import api
from fedexperts.engine import ClientModel
from fedexperts.federation.service import before
from fedexperts.measure import HISTORY, LABELS
from fedexperts.measure.history import read_history

pytestmark = pytest.mark.federation
Cli = Callable[..., tuple[int, str, str]]
MODELS = {"north": "site_nets:reader", "south": "fasttext-wide", "west": "site_nets:reader"}
TEXTS = {"rounds": 3, "batch_size": 16, "vocabulary": 9, "text_length": 4}


def exported(town: Consortium, name: str, cli: Cli) -> ClientModel:
    """A site's model, as its operator gets it."""
    folder = town.folder.parent / f"{name}-model"
    code, out, err = cli("federation", "export", town.folder / name, folder, *town.options(name))
    assert (code, err) == (0, ""), out
    return fedexperts.load_exported(folder)


class Different(Consortium):
    """Each site has a folder with its own texts only, and the model that its operator chose."""

    def __init__(self, folder: Path, clients: Path, **rules: object) -> None:
        super().__init__(folder, NAMES, **rules)
        self.data = {}
        for name in NAMES:
            shutil.copytree(clients / name, folder / name / "data" / name)

    def _command(self, name: str) -> list[str]:
        words = super()._command(name)
        if name not in NAMES:
            return words
        data = str(self.folder / name / "data") + "/"
        return [*words[: words.index("site") + 2], "--data", data, "--model", MODELS[name]]


def test_sites_with_their_own_texts_and_models_one_of_which_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    here = Path(__file__).parent  # where `site_nets` is
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")]))
    clients = folder_of_texts(tmp_path / "clients")
    town = Different(tmp_path / "town", clients, deadline=100, minimum=3)
    town.will_die("south", "kept", after=2)  # when it has opened the run, and then trained once
    town.will_die("server", "taking", after=2)
    with town.alive():
        run = town.run("fedmoe", **TEXTS)
        town.finished(run)
    assert sorted(town.deaths) == ["server", "south"]
    monkeypatch.chdir(here)
    result = api.run("fedmoe", data=f"{clients}/", model=",".join(MODELS[name] for name in NAMES), **TEXTS)
    assert read_history(run / HISTORY) == result.history
    assert (run / LABELS).read_text().startswith("client,cat,dog,owl")
    assert not (run / "absences.csv").exists()
    asked = ["A cat1, or an owl?", ""]
    for name in NAMES:
        found = exported(town, name, cli).predict(asked)
        np.testing.assert_allclose(found, result.predict(name, asked), rtol=1e-4, atol=1e-6)


def test_a_run_that_goes_on_from_another_goes_on_after_deaths_too(tmp_path: Path, cli: Cli) -> None:
    town = Consortium(tmp_path / "town", ("a", "b", "c"), deadline=100, minimum=3)
    values = {"base": "fedper", "rounds": 2, "batch_size": 16, "gate_epochs": 2, "gate_depth": 1}
    town.will_die("a", "half-kept", after=6)  # in the second run, before it has written down that it began
    town.will_die("b", "kept", after=7)  # when it has trained there, before it says so
    town.will_die("server", "complete", after=3)
    with town.alive():
        run = town.run("pm-moe", **values)
        town.finished(run)
    assert sorted(town.deaths) == ["a", "b", "server"]
    result = api.run("pm-moe", **town.data, **values, clients=3)
    assert read_history(run / HISTORY) == result.history
    assert result.before is not None
    assert read_history(before(run) / HISTORY) == result.before.rows
    assert not (run / "absences.csv").exists()
    asked = result.simulation.dataset.inputs[:20]
    for client, name in enumerate(town.sites):
        found, expected = exported(town, name, cli), result.model(client)
        assert found.received.keys() == expected.received.keys()
        np.testing.assert_allclose(found.predict(asked), expected.predict(asked), rtol=1e-4, atol=1e-6)
