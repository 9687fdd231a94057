"""A run that goes on from another's end: each site with its own part of that, the server with its own."""

from pathlib import Path

import numpy as np
import pytest
from neighbourhood import SMALL, Neighbourhood, settings_for
from support import assert_close, assert_same_bits, finished, make_simulation, make_task, make_text_task, states

from fedexperts import api
from fedexperts.config import Settings
from fedexperts.errors import FederationError, FedExpertsError
from fedexperts.federation.asking import Rules
from fedexperts.federation.envelope import Answer, Request, RequestHead, Task
from fedexperts.federation.places import new
from fedexperts.federation.runs import queue
from fedexperts.federation.service import FAILED, before, conduct, waiting
from fedexperts.federation.site import OWN
from fedexperts.federation.vault import Vault
from fedexperts.measure import SUMMARY, Record
from fedexperts.methods import Message, registry
from fedexperts.task import Task as RunTask

TASK = make_task("cnn5/8", sizes=(20, 16, 12))
FIRST = {"rounds": 2, "batch_size": 16, "lr": 0.05}
GATE = {"gate_lr": 0.05, "gate_depth": 1, "gate_start": "kaiming"}
BASES = [kind.name for kind in registry().values() if kind.personal and kind.name != "fedper"]


def pm_moe(base: str = "fedper", task: RunTask = TASK, **values: object) -> Settings:
    return settings_for("pm-moe", task, options={"base": base, "pretraining": FIRST, **GATE}, **values)


@pytest.mark.federation
@pytest.mark.parametrize("base", BASES)
def test_over_every_base_it_ends_where_the_simulation_ends(base: str, tmp_path: Path) -> None:
    task = make_text_task("fasttext", (20, 16, 12)) if base == "fedrep" else TASK
    settings, there = pm_moe(base, task), Neighbourhood(tmp_path, task)
    federation = there.coordinator(there.begun(settings))
    federation.run()
    simulation = make_simulation("pm-moe", task, options=settings.options, participation=1.0)
    simulation.begin(finished(base, task, participation=1.0, **FIRST))
    simulation.run()
    assert_close(there.states(federation), states(simulation))
    assert not (tmp_path / "server" / "absences.csv").exists()


def test_a_site_that_lets_no_module_leave_uses_the_others(tmp_path: Path) -> None:
    """Its operator's word, not the run's: the others go on without its module, as with --keep-out."""
    there = Neighbourhood(tmp_path, TASK)
    there.sites[1]._leaves = ("extractor",)
    federation = there.coordinator(there.begun(pm_moe()))
    federation.run()
    assert federation.server["present.modules"].tolist() == [True, False, True]
    assert federation.method.remarks(federation.server) == ["1 of 3 clients kept their modules out of the pool"]
    options = pm_moe().options | {"keep_out": [1]}
    simulation = make_simulation("pm-moe", TASK, options=options, participation=1.0)
    simulation.begin(finished("fedper", TASK, participation=1.0, **FIRST))
    simulation.run()
    assert_close(there.states(federation), states(simulation))
    assert not (tmp_path / "server" / "absences.csv").exists()


class Killed(BaseException):
    """What no code of ours catches."""


POINTS = [(Task.OPEN, 1, 2), (Task.BEGIN, 1, 1), (Task.TRAIN, 1, 1), (Task.TRAIN, 2, 2), (Task.CLOSE, 2, 0)]


def test_it_goes_on_after_everybody_was_killed(tmp_path: Path) -> None:
    """When a site has done its work but nobody knows, all are made anew from their folders; again and again."""
    whole = Neighbourhood(tmp_path / "whole", TASK)
    undisturbed = whole.coordinator(whole.begun(pm_moe()))
    undisturbed.run()
    settings = Neighbourhood(tmp_path / "again", TASK).begun(pm_moe())
    for point in POINTS:
        there = Neighbourhood(tmp_path / "again", TASK)

        def dies(client: int, request: bytes, answer: bytes, point: tuple[Task, int, int] = point) -> bytes:
            head = Request.from_bytes(request).head
            if (head.task, head.round, client) == point:
                raise Killed
            return answer

        there.meddle = dies
        with pytest.raises(Killed):
            there.coordinator(settings).run()
    there = Neighbourhood(tmp_path / "again", TASK)
    federation = there.coordinator(settings)
    federation.run()
    assert_close(there.states(federation), whole.states(undisturbed))
    histories = [(tmp_path / name / "server" / "history.csv").read_text() for name in ("whole", "again")]
    assert histories[0] == histories[1]


def first_request(there: Neighbourhood, task: Task) -> list[Request]:
    """Lets a run go on, and notes what the first site was asked of this kind."""
    heard: list[Request] = []

    def note(client: int, request: bytes, answer: bytes) -> bytes:
        found = Request.from_bytes(request)
        if client == 0 and found.head.task is task:
            heard.append(found)
        return answer

    there.meddle = note
    return heard


def test_a_site_goes_on_with_its_own_and_nothing_else(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    settings = there.begun(pm_moe())
    heard = first_request(there, Task.BEGIN)
    there.coordinator(settings).run()
    [request] = heard
    site, plan, earlier = there.sites[0], request.head.plan, request.head.before
    assert str(tmp_path) not in request.head.model_dump_json()
    assert set(Message.from_bytes(request.payload).tensors) == {
        name for name in Message.from_bytes(request.payload).tensors if name.startswith("extractor.")
    }
    vault = Vault(site.folder / "state" / plan.run)
    kept = vault.tensors(OWN)

    def refusal(**changes: object) -> str:
        head = request.head.model_copy(update=changes)
        return Answer.from_bytes(site.answer(Request(head, request.payload).to_bytes())).head.refused

    def planned(run: str, **changes: object) -> str:
        """The same for a run that has not begun yet."""
        fresh = plan.model_copy(update={"run": run})
        opened = Request(RequestHead(task=Task.OPEN, plan=fresh))
        assert not Answer.from_bytes(site.answer(opened.to_bytes())).head.refused
        return refusal(plan=fresh, **changes)

    assert refusal() == ""  # asked again, it has begun
    other = earlier.model_copy(update={"run": "second"})
    assert "has begun here otherwise than with run second" in refusal(before=other)
    assert "this site took no part in run second" in planned("new-one", before=other)
    lied = earlier.model_copy(update={"settings": earlier.settings | {"lr": 0.5}})
    assert "run first was planned otherwise when this site took part" in planned("new-two", before=lied)
    base = earlier.model_copy(update={"settings": earlier.settings | {"method": "fedavg"}})
    assert "does not go on from such a run" in planned("new-three", before=base)
    assert "does not go on from such a run" in planned("new-four", before=None)
    assert "is not open at this site" in refusal(plan=plan.model_copy(update={"run": "never"}))
    outside = earlier.model_copy(update={"run": "../../first"})
    assert "String should match pattern" in refusal(before=outside)
    assert planned("new-five") == ""
    assert_same_bits(Vault(site.folder / "state" / plan.run).tensors(OWN), kept)


def test_only_what_is_over_and_of_the_same_sites_can_be_gone_on_from(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    settings = there.begun(pm_moe())
    other = Neighbourhood(tmp_path, make_task("cnn5/8", sizes=(20, 16, 13)))
    with pytest.raises(FederationError, match="run first, which this one begins with, had other sites, or they other"):
        other.coordinator(settings, folder="other")
    unfinished = Path(tmp_path / "first" / "settings.toml")
    unfinished.write_text(unfinished.read_text().replace("rounds = 2", "rounds = 3"))
    with pytest.raises(FedExpertsError, match="rounds was 2"):
        there.coordinator(settings)
    with pytest.raises(FederationError, match="pm-moe begins with a run of fedper, and none is named"):
        there.coordinator(pm_moe())


@pytest.fixture
def town(tmp_path: Path) -> tuple[Path, Neighbourhood]:
    """A federation's folder, and sites without a network."""
    new(tmp_path / "town", ("site-0", "site-1", "site-2"), "localhost", 9440)
    return tmp_path / "town", Neighbourhood(tmp_path, RunTask.of(**DATA, clients=3))


DATA = {"data": "digits", "samples": 240, "partition": "dirichlet", "alpha": 1.0}
SHORT = {name: SMALL[name] for name in ("batch_size", "device", "executor")} | {"lr": 0.05, "rounds": 2}


def worked_off(folder: Path, there: Neighbourhood) -> list[str]:
    """As the server does it; the runs' names, in order."""
    done = []
    while runs := waiting(folder / "runs"):
        conduct(runs[0], tuple(there.names), there, Rules(), lambda **known: None)
        done.append(runs[0].name)
    return done


def test_both_phases_in_one_command(town: tuple[Path, Neighbourhood], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(town[0].parent)
    folder, there = Path("town"), town[1]
    values = DATA | SHORT | GATE | {"base": "fedper", "gate_epochs": 2}
    run = queue(folder, "pm-moe", values, "mixed")
    assert queue(folder, "pm-moe", values, "mixed") == run  # shows its progress again
    assert before(run) == folder / "runs" / "mixed-first"
    assert worked_off(folder, there) == ["mixed-first", "mixed"]
    simulated = api.run("pm-moe", **values, clients=3, out=folder / "simulated")
    assert (run / "history.csv").read_text() == (folder / "simulated" / "history.csv").read_text()
    first = folder / "simulated" / "before" / "history.csv"
    assert (folder / "runs" / "mixed-first" / "history.csv").read_text() == first.read_text()
    assert simulated.before is not None
    for record in (Record.load(run), simulated.record):  # the base's own run is at hand
        assert record.before is not None
        np.testing.assert_array_equal(record.before.curve.test, simulated.before.curve.test)


def test_or_from_a_run_that_is_there(town: tuple[Path, Neighbourhood]) -> None:
    folder, there = town
    first = queue(folder, "fedper", DATA | SHORT, "a-base")
    run = queue(folder, "pm-moe", {"from": "a-base", "gate_epochs": 2, **GATE}, "mixed")
    assert before(run) == first
    assert worked_off(folder, there) == ["a-base", "mixed"]
    both = queue(folder, "pm-moe", DATA | SHORT | GATE | {"base": "fedper", "gate_epochs": 2}, "both")
    assert worked_off(folder, there) == ["both-first", "both"]
    assert (run / "history.csv").read_text() == (both / "history.csv").read_text()
    with pytest.raises(
        FederationError, match="has no run 'nothing' to go on from; its runs are: a-base, both, both-fi"
    ):
        queue(folder, "pm-moe", {"from": "nothing"}, None)


def test_without_its_first_phase_there_is_no_second(town: tuple[Path, Neighbourhood]) -> None:
    folder, there = town
    run = queue(folder, "pm-moe", DATA | SHORT | {"base": "fedper"}, "mixed")
    (folder / "runs" / "mixed-first" / FAILED).write_text("nobody came")
    with pytest.raises(FederationError, match="run mixed-first, which this one begins with, has failed"):
        conduct(run, tuple(there.names), there, Rules(), lambda **known: None)
    assert not (run / SUMMARY).exists()
