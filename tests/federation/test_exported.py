"""The model that a site has in the end: what it scored, and what the simulation's client has."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import site_nets
import torch
from neighbourhood import SMALL, Neighbourhood, settings_for
from support import finished, make_simulation, make_task

import fedexperts
from fedexperts.config import Settings
from fedexperts.engine import ClientModel
from fedexperts.errors import FederationError, SavedStateError
from fedexperts.federation.asking import Rules
from fedexperts.federation.envelope import Request, Task
from fedexperts.federation.exported import SiteModel
from fedexperts.federation.places import new
from fedexperts.federation.runs import queue
from fedexperts.federation.service import conduct, waiting
from fedexperts.federation.site import Site
from fedexperts.federation.vault import MANIFEST
from fedexperts.measure import History, curve
from fedexperts.measure.history import read_history
from fedexperts.methods import part_of

pytestmark = pytest.mark.federation  # together they take a minute
Cli = Callable[..., tuple[int, str, str]]
TASK = make_task("cnn5", sizes=(32, 29, 12))
FIRST = {"rounds": 2, "batch_size": 16, "lr": 0.05}
PM_MOE = {"base": "fedper", "pretraining": FIRST, "gate_lr": 0.05, "gate_depth": 1, "gate_start": "kaiming"}
DATA = {"data": "digits", "samples": 240, "partition": "dirichlet", "alpha": 1.0, "clients": 3}
OPTIONS = [word for name, value in DATA.items() for word in (f"--{name}", value)]
SHORT = {name: SMALL[name] for name in ("batch_size", "device", "executor")} | {"lr": 0.05, "rounds": 2}


def settings(method: str, **values: object) -> Settings:
    return settings_for(method, TASK, **{"options": PM_MOE} if method == "pm-moe" else {}, **values)


def accuracy(model: ClientModel, client: int) -> float:
    """On the client's own test data."""
    test = TASK.at(1, 1)[client].test
    return float((model.predict(TASK.dataset.inputs[test]).argmax(1) == TASK.dataset.labels[test]).mean())


@pytest.mark.parametrize("method", ["fedmoe-da", "fedper", "pm-moe"])
def test_it_predicts_what_the_site_scored_and_what_the_simulation_predicts(method: str, tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    there.coordinator(there.begun(settings(method))).run()
    history = History()
    values = {"options": PM_MOE} if method == "pm-moe" else {}
    simulation = make_simulation(method, TASK, observers=(history,), participation=1.0, **values)
    if simulation.method.begins() is not None:
        simulation.begin(finished("fedper", TASK, participation=1.0, **FIRST))
    simulation.run()

    rows, mixing = read_history(tmp_path / "server" / "history.csv"), set()
    for client, site in enumerate(there.sites):
        SiteModel.of(site, "a-run").export(tmp_path / f"model-{client}")
        model = fedexperts.load_exported(tmp_path / f"model-{client}")
        expected = ClientModel.of(simulation, client, curve(history.rows).validation_of(client))
        np.testing.assert_allclose(model.predict(TASK.dataset.inputs), expected.predict(TASK.dataset.inputs), 1e-9)
        assert model.received.keys() == expected.received.keys()
        own = {row["round"]: row for row in rows if row["client"] == client}
        used = 3
        if method == "pm-moe":
            used = 3 if own[3]["validation_accuracy"] > own[1]["validation_accuracy"] else 1
            assert {part_of(name) for name in model.received} == ({"pool", "present"} if used == 3 else set())
            mixing.add(used == 3)
        assert accuracy(model, client) == own[used]["test_accuracy"]
        card = (tmp_path / f"model-{client}" / "README.md").read_text()
        assert f"| last | {100 * own[3]['test_accuracy']:.2f} % |" in card
        assert "- federation: run a-run, as after round 3 of 3" in card
        assert ("*last* is the model in this folder;" in card) == (used == 3)
        program = torch.export.load(tmp_path / f"model-{client}" / "model.pt2").module()
        few = TASK.dataset.inputs[:3]
        np.testing.assert_allclose(program(torch.from_numpy(few)), model.predict(few), rtol=1e-6)
    assert method != "pm-moe" or mixing == {True, False}  # or this shows less than it should


@pytest.mark.parametrize("method", ["fedper", "fedemoe"])
def test_a_model_of_the_sites_own_making_is_found_where_it_is(method: str, tmp_path: Path) -> None:
    """Also by a method that names tensors by the model, which in a federation is called `own`."""
    there = Neighbourhood(tmp_path, TASK, models=["site_nets:small"] * 3)
    there.coordinator(settings(method, rounds=1)).run()
    found = SiteModel.of(there.sites[1])
    found.export(tmp_path / "model")
    assert "Its model: `site_nets:small`." in (tmp_path / "model" / "README.md").read_text()
    x = TASK.dataset.inputs[:20]
    for given in (None, site_nets.small):
        model = fedexperts.load_exported(tmp_path / "model", model=given)
        assert np.array_equal(model.predict(x), found.model.predict(x))


class Killed(BaseException):
    """What no code of ours catches."""


def killed(there: Neighbourhood, settings: Settings, task: Task, round_number: int, client: int) -> None:
    """A run up to where a site has done a step that nobody will know of."""

    def dies(asked: int, request: bytes, answer: bytes) -> bytes:
        head = Request.from_bytes(request).head
        if (head.task, head.round, asked) == (task, round_number, client):
            raise Killed
        return answer

    there.meddle = dies
    with pytest.raises(Killed):
        there.coordinator(settings).run()


@pytest.mark.parametrize("method", ["fedmoe", "fedmoe-da"])
def test_before_a_run_is_over_it_is_that_of_the_last_evaluation(method: str, tmp_path: Path) -> None:
    """Also when the site has trained since, and dies; and when it dies right after it was evaluated."""
    there = Neighbourhood(tmp_path, TASK)
    killed(there, settings(method), Task.TRAIN, 2, 2)  # all have trained a second time
    x = TASK.dataset.inputs
    first = make_simulation(method, TASK, participation=1.0)
    first.step()
    for client, site in enumerate(Neighbourhood(tmp_path, TASK).sites):  # other processes
        found = SiteModel.of(site, "a-run")
        assert found.origin == "run a-run, as after round 1 of 3"
        np.testing.assert_allclose(found.model.predict(x), ClientModel.of(first, client, {}).predict(x), 1e-9)
    killed(there, settings(method), Task.CLOSE, 2, 0)  # the first has been evaluated, the others have not
    first.step()
    origins = [SiteModel.of(site, "a-run") for site in Neighbourhood(tmp_path, TASK).sites]
    assert [one.origin[-12:] for one in origins] == ["round 2 of 3", "round 1 of 3", "round 1 of 3"]
    np.testing.assert_allclose(origins[0].model.predict(x), ClientModel.of(first, 0, {}).predict(x), 1e-9)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_evaluation_that_could_not_be_kept_is_none(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    federation = there.coordinator(settings("fedmoe"))
    federation.step()
    before = SiteModel.of(there.sites[0], "a-run")
    full = there.sites[0].vault("a-run").folder / "message-000002-close"
    there.meddle = lambda client, request, answer: (
        (full.symlink_to("/dev/full") if b'"task":"train"' in request and client == 0 else None) or answer
    )
    federation.step()
    after = SiteModel.of(there.sites[0], "a-run")
    assert after.origin == before.origin == "run a-run, as after round 1 of 3"
    assert np.array_equal(after.model.predict(TASK.dataset.inputs), before.model.predict(TASK.dataset.inputs))
    assert SiteModel.of(there.sites[1], "a-run").origin == "run a-run, as after round 2 of 3"


def test_a_round_that_ends_while_the_model_is_read_does_no_harm(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    federation = there.coordinator(settings("fedper"))
    federation.step()
    vault = there.sites[0].vault("a-run")
    federation.step()
    kept = vault.as_evaluated()
    assert (kept.round, list(kept.scores)) == (2, [1, 2])
    for path in vault.folder.glob("message-*"):
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(SavedStateError, match=rf"{path.name} has .* it was cut off or changed; restore it"):
            SiteModel.of(there.sites[0], "a-run")


def test_which_run_is_meant(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    site = there.sites[0]
    with pytest.raises(FederationError, match="site-0 has taken part in no run yet"):
        SiteModel.of(site)
    unfinished = there.coordinator(settings("fedavg", evaluate_every=2), "beginning", "beginning")
    unfinished.step()
    with pytest.raises(FederationError, match=r"no run is over at .*site-0; --run NAME takes one .*: beginning"):
        SiteModel.of(site)
    with pytest.raises(FederationError, match="has not been evaluated in run beginning yet"):
        SiteModel.of(site, "beginning")
    for name in ("second", "first"):
        there.coordinator(settings("fedper", rounds=1), name, name).run()
    unfinished.step()
    assert SiteModel.of(site).origin == "run first, as after round 1 of 1"
    assert SiteModel.of(site, "second").origin == "run second, as after round 1 of 1"
    assert SiteModel.of(site, "beginning").origin == "run beginning, as after round 2 of 3"
    for name in ("secund", "../second"):
        with pytest.raises(
            FederationError, match=r"has no run '.*'; did you mean 'second'\? its runs are: beginning, f"
        ):
            SiteModel.of(site, name)


def test_what_an_older_version_has_kept_is_no_model(tmp_path: Path) -> None:
    """It is still a run that can go on, and then there is one."""
    there = Neighbourhood(tmp_path, TASK)
    federation = there.coordinator(settings("fedper"))
    federation.step()
    manifest = there.sites[0].vault("a-run").folder / MANIFEST
    content = json.loads(manifest.read_text())
    del content["evaluated"]
    manifest.write_text(json.dumps(content))
    with pytest.raises(FederationError, match="took part in run a-run with an older version of fedexperts, which"):
        SiteModel.of(there.sites[0], "a-run")
    federation.run()
    assert SiteModel.of(there.sites[0]).origin == "run a-run, as after round 3 of 3"


def test_a_site_that_asks_for_more_noise_since_still_has_its_model(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    there.coordinator(settings("fedper", rounds=1)).run()
    site = there.sites[0]
    strict = Site(site.folder, site.holding, there.fetch, least_noise=1.0)
    assert SiteModel.of(strict).figures == SiteModel.of(site).figures


def test_with_other_data_there_is_none(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    there.coordinator(settings("fedper", rounds=1)).run()
    other = Neighbourhood(tmp_path, make_task("cnn5", sizes=(33, 29, 12))).sites[0]
    with pytest.raises(FederationError, match="other data than this site has: training samples: 33, not 32"):
        SiteModel.of(other)


# --- the command


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation's folder in which a run is over; its sites had no network."""
    folder = tmp_path_factory.mktemp("export") / "town"
    new(folder, ("site-0", "site-1", "site-2"), "localhost", 9440)
    there = Neighbourhood(folder, fedexperts.Task.of(**DATA))
    queue(folder, "fedper", DATA | SHORT, "a-base")
    [run] = waiting(folder / "runs")
    conduct(run, tuple(there.names), there, Rules(), lambda **known: None)
    return folder


def test_a_site_exports_its_model_and_asks_it(town: Path, cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("federation", "export", town / "site-1", tmp_path / "model", *OPTIONS, "--part", 1)
    assert (code, err) == (0, "")
    assert out.startswith("run a-base, as after round 2 of 2; test accuracy: last ")
    assert f"model: {tmp_path / 'model'} (README.md, model.json, " in out
    assert "# Client site-1's model, trained with FedPer" in (tmp_path / "model" / "README.md").read_text()
    result = fedexperts.run("fedper", **DATA, **SHORT)
    x = fedexperts.Task.of(**DATA).dataset.inputs[:20]
    np.save(tmp_path / "x.npy", x)
    model = fedexperts.load_exported(tmp_path / "model")
    np.testing.assert_allclose(model.predict(x), result.predict(1, x), rtol=1e-4, atol=1e-6)
    code, out, _ = cli("predict", tmp_path / "model", tmp_path / "x.npy")
    assert (code, len(out.splitlines())) == (0, 21)


def test_its_data_may_stand_in_the_sites_settings(town: Path, cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(town / "site-2", tmp_path / "site-2")
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**DATA, "part": 2}.items()]
    with open(tmp_path / "site-2" / "site.toml", "a", encoding="utf-8") as file:
        file.write("\n".join(["", "[data]", *lines]))
    assert cli("federation", "export", tmp_path / "site-2", tmp_path / "model", "--run", "a-base")[0] == 0
    assert (tmp_path / "model" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("site-0", "site-1", *OPTIONS), "site-1 exists and is not an empty folder; choose another"),
        (
            ("site-0", "new", "--run", "a-bass", *OPTIONS),
            "no run 'a-bass'; did you mean 'a-base'? its runs are: a-base",
        ),
        (("site-0", "new", *OPTIONS, "--part", 1), "run a-base is planned for other data than this site has"),
        (("site-0", "new", *OPTIONS, "--rate", 1), "unknown option --rate of a site; see `fedexperts data`"),
        ((".", "new", *OPTIONS), "there is no settings file site.toml"),
    ],
)
def test_what_cannot_be_exported_says_so_in_a_line(
    words: tuple[object, ...], says: str, town: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(town)
    code, _, err = cli("federation", "export", *words)
    assert (code, err.count("\n")) == (2, 1), err
    assert says in err
    assert not Path("new").exists()
