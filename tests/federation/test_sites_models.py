"""Sites with models of their own: the code stays where it is, and all ends as in a simulation that has all of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from neighbourhood import Neighbourhood, settings_for
from site_nets import FEATURES
from support import assert_close, make_simulation, make_task, states

from fedexperts.errors import FederationError, FedExpertsError
from fedexperts.federation.envelope import Answer, AnswerHead, Request, RequestHead, Task
from fedexperts.federation.places import new
from fedexperts.measure import History
from fedexperts.methods import Message, registry
from fedexperts.models import Outline

SIZES = (32, 29, 12)
DIFFERENT, ALIKE = ("site_nets:small", "site_nets:plain", "cnn5/8"), ("site_nets:small",) * 3
PRIVATE = ("fedmoe", "fedproto")
SHARED = ("fedper", "fedavg", "fedmoe-da")
OTHERS = [name for name, kind in registry().items() if not kind.goes_on_from and name not in (*PRIVATE, *SHARED)]


def federated(name: str, models: tuple[str, ...], folder: Path, **values: object) -> None:
    """A federation whose sites have these models, and a simulation with the same, end alike."""
    task = make_task(",".join(models), SIZES, common="cnn5/8")
    there = Neighbourhood(folder, task, models=models)
    federation = there.coordinator(settings_for(name, make_task("cnn5/8", SIZES), participation=0.7, **values))
    federation.run()
    history = History(folder / "history.csv")
    simulation = make_simulation(name, task, observers=(history,), participation=0.7, **values)
    assert simulation.note == federation.note == ""
    simulation.run()
    assert_close(there.states(federation), states(simulation))
    assert (folder / "server" / "history.csv").read_text() == (folder / "history.csv").read_text()
    assert not (folder / "server" / "absences.csv").exists()


@pytest.mark.parametrize("name", PRIVATE)
def test_private_models_may_all_be_different(name: str, tmp_path: Path) -> None:
    federated(name, DIFFERENT, tmp_path)


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_part_may_be_of_the_sites_own_making(name: str, tmp_path: Path) -> None:
    federated(name, ALIKE, tmp_path)


def test_a_method_that_names_tensors_by_the_model_knows_it_as_the_sites_own(tmp_path: Path) -> None:
    task = make_task(",".join(ALIKE), SIZES, common="cnn5/8")
    there = Neighbourhood(tmp_path, task, models=ALIKE)
    federation = there.coordinator(settings_for("fedemoe", make_task("cnn5/8", SIZES), rounds=2))
    federation.run()
    simulation = make_simulation("fedemoe", task, participation=1.0, rounds=2)
    simulation.run()
    expected = {name.replace(ALIKE[0], "own"): tensor for name, tensor in states(simulation).items()}
    assert_close(there.states(federation), expected)


@pytest.mark.federation
@pytest.mark.parametrize("name", [name for name in OTHERS if name != "fedemoe"])
def test_every_other_method_with_models_of_the_sites_own(name: str, tmp_path: Path) -> None:
    federated(name, ALIKE, tmp_path, rounds=2)


def asked(task: Task, folder: Path, name: str, models: tuple[str, ...], **values: object) -> dict[int, Answer]:
    """What sites answer to one kind of question, before and in the first round."""
    there = Neighbourhood(folder, make_task("cnn5/8", SIZES), models=models)
    answers: dict[int, Answer] = {}

    def note(client: int, request: bytes, answer: bytes) -> bytes:
        if Request.from_bytes(request).head.task is task:
            answers[client] = Answer.from_bytes(answer)
        return answer

    there.meddle = note
    there.coordinator(settings_for(name, make_task("cnn5/8", SIZES), rounds=1, **values)).run()
    return answers


@pytest.mark.parametrize(
    ("name", "told"), [("fedmoe", False), ("lg-fedavg", False), ("fedper", True), ("fedmoe-da", True)]
)
def test_of_a_model_no_more_is_told_than_a_method_shares_of_it(name: str, told: bool, tmp_path: Path) -> None:
    """Where the extractor is private not even its layout is."""
    outlines = [answer.head.outline for answer in asked(Task.MODEL, tmp_path, name, ALIKE).values()]
    assert len(outlines) == 3
    for outline in outlines:
        assert (outline.features, outline.bias) == (FEATURES, True)
        assert [layout.name for layout in outline.extractor or ()][:2] == ["net.0.weight", "net.0.bias"] * told
        assert (outline.stem is not None) == (name == "fedmoe-da")  # where it is cut in two
    assert not any(b"site_nets" in answer.to_bytes() for answer in asked(Task.PROFILE, tmp_path, name, ALIKE).values())


@pytest.mark.parametrize(
    ("method", "told"), [("fedproto", "62 features"), ("fedper", "62 features, net.0.weight (4, 1, 3, 3)")]
)
def test_an_operator_sees_what_would_leave(
    method: str, told: str, tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    new(tmp_path / "town", ("a", "b"), "localhost", 9440)
    data = ("--data", "digits", "--clients", 2, "--part", 0, "--model", "site_nets:small")
    code, out, _ = cli("site", tmp_path / "town" / "a", *data, "--show-outgoing", "--method", method)
    assert code == 0
    assert ("extractor.net.0.weight" in out) == (method == "fedper")
    assert f"told of this site's own model before the first round: its {told}" in " ".join(out.split())


def test_the_first_site_draws_the_beginning_if_the_model_is_its_own(tmp_path: Path) -> None:
    own = asked(Task.START, tmp_path / "own", "fedper", ALIKE)
    assert list(own) == [0]
    assert Message.from_bytes(own[0].payload).tensors.keys() >= {"extractor.net.0.weight"}
    assert asked(Task.START, tmp_path / "ours", "fedmoe", ("cnn5/8", "site_nets:small", "site_nets:plain")) == {}


def test_sites_whose_models_do_not_go_together_are_named(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, make_task("cnn5/8", SIZES), models=DIFFERENT)
    with pytest.raises(
        FederationError, match=r"fedavg needs one model for all .* site-0 own, site-1 own, site-2 cnn5/8"
    ):
        there.coordinator(settings_for("fedavg", make_task("cnn5/8", SIZES)))


def test_a_model_that_does_not_take_the_samples_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, make_task("cnn5/8", SIZES), models=("site_nets:small", "site_nets:other", "cnn5/8"))
    with pytest.raises(FederationError, match=r"site-1: it refuses: .*ends in 3 outputs, the data have 4 classes"):
        there.coordinator(settings_for("fedmoe", make_task("cnn5/8", SIZES)))


def test_a_run_cannot_name_code(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, make_task("cnn5/8", SIZES))
    with pytest.raises(FederationError, match="a run cannot name code for its sites; a site's operator does"):
        there.coordinator(settings_for("fedmoe", make_task("site_nets:small", SIZES)))


WAYS = {
    "another client's model": lambda plan: {},
    "the model": lambda plan: {"client": plan.client.model_copy(update={"model": "trap:spring"})},
    "the common model": lambda plan: {"client": plan.client.model_copy(update={"common": "trap:spring"})},
    "the method's options": lambda plan: {"settings": plan.settings | {"options": {"shared_model": "trap:spring"}}},
    "what is in them": lambda plan: {"settings": plan.settings | {"options": {"pretraining": {"x": ["trap:spring"]}}}},
    "the run's models": lambda plan: {"settings": plan.settings | {"model": ["trap:spring"]}},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("own", [None, "site_nets:small"])
def test_whatever_way_a_server_names_code_no_site_imports_it(
    way: str, own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap.py").write_text("from pathlib import Path\nPath(__file__).with_name('sprung').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    there = Neighbourhood(tmp_path, make_task("cnn5/8", SIZES), models=own and (own,) * 3)
    refusals: list[str] = []

    def names_code(client: int, request: bytes, answer: bytes) -> bytes:
        if (plan := Request.from_bytes(request).head.plan) is not None:
            for task in (Task.MODEL, Task.START, Task.OPEN, Task.TRAIN):
                changed = plan.model_copy(update=WAYS[way](plan))
                first = (plan.client.model_copy(update={"id": 5, "model": "trap:spring"}),) if changed == plan else ()
                if first and task is not Task.START:
                    continue  # nothing else looks at them
                head = RequestHead(task=task, round=2, plan=changed, first=first)
                refusals.append(Answer.from_bytes(there.sites[client].answer(Request(head).to_bytes())).head.refused)
        return answer

    there.meddle = names_code
    there.coordinator(settings_for("fedmoe", make_task("cnn5/8", SIZES), rounds=1)).run()
    assert len(refusals) > 6
    assert all("a server may not name code for a site to run" in reason for reason in refusals)
    assert not (tmp_path / "sprung").exists()


def test_nor_does_a_server_import_what_a_site_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "snare.py").write_text("from pathlib import Path\nPath(__file__).with_name('sprung').touch()\n")
    answer = Answer(AnswerHead(profile=Neighbourhood(tmp_path, make_task("cnn5/8", SIZES)).sites[0].profile)).to_bytes()
    assert Answer.from_bytes(answer).head.profile.model == ""
    named = answer.replace(b'"profile":{', b'"profile":{"model":"snare:spring",')
    length = len(named) - 4
    with pytest.raises(FederationError, match=r"profile\.model String should match pattern"):
        Answer.from_bytes(length.to_bytes(4, "big") + named[4:])
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: Message({name: tensor * torch.nan for name, tensor in m.tensors.items()}),
        lambda m: Message(dict(list(m.tensors.items())[1:])),
        lambda m: Message({name: tensor[None] for name, tensor in m.tensors.items()}),
        lambda m: Message({**m.tensors, "head.weight": torch.zeros(1)}),
    ],
)
def test_a_beginning_that_is_none_is_refused(spoil: Callable[[Message], Message], tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, make_task("cnn5/8", SIZES), models=ALIKE)

    def meddle(client: int, request: bytes, answer: bytes) -> bytes:
        if Request.from_bytes(request).head.task is not Task.START:
            return answer
        given = Answer.from_bytes(answer)
        return Answer(given.head, spoil(Message.from_bytes(given.payload)).to_bytes()).to_bytes()

    there.meddle = meddle
    with pytest.raises(FederationError, match=r"site-0: .*(no numbers|is not of this run)"):
        there.coordinator(settings_for("fedper", make_task("cnn5/8", SIZES)))


@pytest.mark.parametrize(
    "extractor",
    [
        [{"name": "w", "shape": [1 << 20, 1 << 20], "dtype": "float32"}],
        [{"name": "w", "shape": [1], "dtype": "float32"}] * 2,
        [{"name": "w", "shape": [1], "dtype": "float32"}, {"name": "w.x", "shape": [1], "dtype": "float32"}],
        [{"name": "../w", "shape": [1], "dtype": "float32"}],
        [{"name": "forward", "shape": [1], "dtype": "float32"}],
        [{"name": "w", "shape": [-1], "dtype": "float32"}],
        [{"name": "w", "shape": [1], "dtype": "object"}],
    ],
)
def test_an_outline_that_nobody_could_make_room_for_is_none(extractor: object) -> None:
    with pytest.raises(FedExpertsError):
        Outline.check({"features": 3, "extractor": extractor})


def test_a_run_with_models_of_the_sites_own_goes_on_where_it_was(tmp_path: Path) -> None:
    """Server and sites are made anew from their folders; nobody is asked again what it has told."""
    settings = settings_for("fedper", make_task("cnn5/8", SIZES))
    whole = Neighbourhood(tmp_path / "whole", make_task("cnn5/8", SIZES), models=ALIKE).coordinator(settings)
    whole.run()
    Neighbourhood(tmp_path / "twice", make_task("cnn5/8", SIZES), models=ALIKE).coordinator(
        settings.model_copy(update={"rounds": 3})
    ).step()
    again = Neighbourhood(tmp_path / "twice", make_task("cnn5/8", SIZES), models=ALIKE)
    tasks: set[Task] = set()
    again.meddle = lambda client, request, answer: tasks.add(Request.from_bytes(request).head.task) or answer
    federation = again.coordinator(settings)
    federation.run()
    assert_close(federation.server, whole.server)
    assert tasks == {Task.OPEN, Task.TRAIN, Task.CLOSE}


def test_an_outline_that_is_no_models_ends_the_run_and_not_the_server(tmp_path: Path) -> None:
    """A stem with more tensors than there are, of a shape that nothing has: what a site says is not believed."""
    there = Neighbourhood(tmp_path, make_task("cnn5/8", SIZES), models=ALIKE)

    def meddle(client: int, request: bytes, answer: bytes) -> bytes:
        given = Answer.from_bytes(answer)
        if given.head.outline is None or client != 1:
            return answer
        outline = Outline.check({**given.head.outline.model_dump(), "stem": {"tensors": 3, "shape": [7] * 4}})
        return Answer(given.head.model_copy(update={"outline": outline})).to_bytes()

    there.meddle = meddle
    with pytest.raises(FedExpertsError, match="fedmoe-da"):
        there.coordinator(settings_for("fedmoe-da", make_task("cnn5/8", SIZES)))
