"""Sites with data of their own: they agree on classes, words and scales, and end where a simulation of all would."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from neighbourhood import Neighbourhood, settings_for
from own import NAMES, folder_of_arrays, folder_of_pictures, folder_of_tables, folder_of_texts
from support import assert_close, make_simulation, states

from fedexperts import Client, api
from fedexperts.errors import FederationError, FedExpertsError
from fedexperts.federation.asking import Rules
from fedexperts.federation.envelope import Answer, Request, RequestHead
from fedexperts.federation.envelope import Task as Ask
from fedexperts.federation.holding import Own
from fedexperts.federation.places import new
from fedexperts.federation.reading import MOST_LETTERS, Reading, Told, frequent
from fedexperts.federation.runs import queue
from fedexperts.federation.service import conduct
from fedexperts.measure import History
from fedexperts.task import Task

Make = Callable[[Path], Path]
TEXT = {"vocabulary": 9, "text_length": 4}


def texts(place: Path) -> Path:
    """Texts with rare words; the first client has no owls, which come last in the alphabet, the second no cats."""
    folder_of_texts(place)
    for name, lacks in (("north", "owl"), ("south", "cat")):
        for path in (place / name).glob("*.jsonl"):
            lines = [line for line in path.read_text().splitlines() if json.loads(line)["label"] != lacks]
            path.write_text("\n".join(lines))
    return place


def table_files(place: Path) -> Path:
    """Tables whose first columns are not in one order; one client has no dogs."""
    folder_of_tables(place)
    for path in (place / "west").glob("*.csv"):
        path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.endswith("dog")))
    return place


def arrays_of_rows(place: Path) -> Path:
    """Tables without names: .npz, whose labels are numbers; the last class is at one client only."""
    for number, name in enumerate(NAMES):
        (place / name).mkdir(parents=True)
        for split, count in (("train", 30), ("test", 12)):
            rng = np.random.default_rng(10 * number + count)
            y = np.arange(count) % (2 if number else 3)
            np.savez(place / name / f"{split}.npz", x=rng.normal(100 * y[:, None], 7, (count, 5)), y=y)
    return place


def some_coloured(place: Path) -> Path:
    """Images of which one client's have three channels."""
    folder_of_arrays(place)
    for path in (place / "south").glob("*.npz"):
        found = dict(np.load(path))
        np.savez(path, x=np.repeat(found["x"], 3, axis=1), y=found["y"])
    return place


FORMS: dict[str, tuple[Make, str]] = {
    "texts": (texts, "fedmoe"),
    "tables": (table_files, "fedavg"),
    "rows": (arrays_of_rows, "fedproto"),
    "pictures": (folder_of_pictures, "fedper"),
    "arrays": (some_coloured, "fedavg"),
}


def all_of(place: Path) -> Task:
    return Task.of(data=f"{place}/", **TEXT)


def sites_of(place: Path, tells: Sequence[bool] = (True, True, True)) -> list[Own]:
    """Each reads its own folder, and no other."""
    settings = all_of(place).settings
    return [Own(Client.read(place / name), settings, tells=tell) for name, tell in zip(NAMES, tells, strict=True)]


@pytest.mark.parametrize("form", FORMS)
def test_sites_of_their_own_data_end_where_the_simulation_of_all_ends(form: str, tmp_path: Path) -> None:
    make, method = FORMS[form]
    task, there = all_of(make(tmp_path / "clients")), Neighbourhood(tmp_path, sites_of(tmp_path / "clients"))
    federation = there.coordinator(settings_for(method, task))
    federation.run()
    history = History(tmp_path / "history.csv")
    simulation = make_simulation(method, task, observers=(history,), participation=1.0)
    simulation.run()
    assert tuple(federation.class_names) == task.dataset.class_names
    assert_close(there.states(federation), states(simulation))
    assert (tmp_path / "server" / "history.csv").read_text() == (tmp_path / "history.csv").read_text()
    assert not (tmp_path / "server" / "absences.csv").exists()


def test_a_run_on_own_data_goes_on_where_it_was_and_nobody_tells_twice(tmp_path: Path) -> None:
    task = all_of(texts(tmp_path / "clients"))
    settings, sites = settings_for("fedavg", task), sites_of(tmp_path / "clients")
    whole = Neighbourhood(tmp_path / "whole", sites).coordinator(settings)
    whole.run()
    Neighbourhood(tmp_path / "twice", sites).coordinator(settings).step()
    again, tasks = Neighbourhood(tmp_path / "twice", sites), set()
    again.meddle = lambda client, request, answer: tasks.add(Request.from_bytes(request).head.task) or answer
    federation = again.coordinator(settings)
    federation.run()
    assert_close(federation.server, whole.server)
    assert tasks == {Ask.OPEN, Ask.TRAIN, Ask.CLOSE}


def test_a_site_that_does_not_tell_reads_as_the_others_agree(tmp_path: Path) -> None:
    """Its words and rows count for nothing, its classes do."""
    place = texts(tmp_path / "clients")
    settings = settings_for("fedavg", all_of(place), rounds=1, vocabulary=1000)
    quiet = Neighbourhood(tmp_path / "one", sites_of(place, (True, True, False))).coordinator(settings)
    quiet.run()
    words = quiet._reading.words
    assert {"north", "south"} <= set(words)
    assert "west" not in words
    assert quiet.class_names == ("cat", "dog", "owl")
    assert not (tmp_path / "one" / "server" / "absences.csv").exists()
    with pytest.raises(FederationError, match="no site tells how often it has which words"):
        Neighbourhood(tmp_path / "none", sites_of(place, (False,) * 3)).coordinator(settings)
    rows = arrays_of_rows(tmp_path / "rows")
    with pytest.raises(FederationError, match="no site tells its columns' sums"):
        Neighbourhood(tmp_path / "rows", sites_of(rows, (False,) * 3)).coordinator(settings)


def test_what_cannot_be_agreed_on_names_the_site(tmp_path: Path) -> None:
    place = table_files(tmp_path / "clients")
    settings = settings_for("fedavg", all_of(place))
    other = Client.read(arrays_of_rows(tmp_path / "rows") / "west")
    *tables, _ = sites_of(place)
    with pytest.raises(FederationError, match=r"site site-2 has samples of kind values and shape \(5,\)"):
        Neighbourhood(tmp_path / "a", [*tables, Own(other, tables[0].settings)]).coordinator(settings)
    for path in (place / "west").glob("*.csv"):
        path.write_text(path.read_text().replace("income", "wage"))
    with pytest.raises(FederationError, match="site site-2 lacks the column 'income'"):
        Neighbourhood(tmp_path / "b", [*tables, Own(Client.read(place / "west"), tables[0].settings)]).coordinator(
            settings
        )


TOLD = {"kind": "values", "shape": [2], "labels": ["a", "b"], "sums": {"count": 27, "total": [1, 2], "squares": [3, 4]}}


@pytest.mark.parametrize(
    "changes",
    [
        {"sums": {"count": 27, "total": [1, float("nan")], "squares": [3, 4]}},
        {"sums": {"count": 27, "total": [1, float("inf")], "squares": [3, 4]}},
        {"sums": {"count": 27, "total": [1], "squares": [3, 4]}},
        {"sums": {"count": 0, "total": [1, 2], "squares": [3, 4]}},
        {"columns": ["a"]},
        {"labels": []},
        {"labels": ["x" * 300]},
        {"largest": 10**9, "labels": []},
        {"words": {"x" * (MOST_LETTERS + 1): 1}},
        {"words": {"x": -1}},
        {"words": {str(number): 1 for number in range(100_001)}},
        {"rows": [[1, 2]]},
    ],
)
def test_what_a_site_tells_has_limits(changes: dict[str, object]) -> None:
    assert Told.check(TOLD)
    with pytest.raises(FedExpertsError):
        Told.check(TOLD | changes)


READING = {"kind": "values", "classes": ["a", "b"], "shape": [2], "mean": [0, 0], "spread": [1, 1]}


@pytest.mark.parametrize(
    "changes",
    [
        {"spread": [1, 0]},
        {"mean": [0, float("nan")]},
        {"mean": None},
        {"mean": [0], "spread": [1]},
        {"classes": ["a", "a"]},
        {"classes": ["a"]},
        {"columns": ["a", "a"]},
        {"kind": "text"},
        {"kind": "text", "shape": [4], "words": ["a", "a"], "mean": None, "spread": None},
        {"words": ["a"]},
        {"shape": [1 << 24, 1 << 24], "mean": None, "spread": None},
    ],
)
def test_what_a_server_makes_of_it_has_too(changes: dict[str, object]) -> None:
    assert Reading.check(READING)
    with pytest.raises(FedExpertsError):
        Reading.check(READING | changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"classes": ("cat", "dog")}, "has the label 'owl', which is no class"),
        ({"columns": ("age", "wage")}, "lacks the column 'wage'"),
        ({"mean": (0.0,) * 3, "spread": (1.0,) * 3, "shape": (3,), "columns": ()}, "has other samples than the run"),
    ],
)
def test_a_site_refuses_a_reading_that_is_not_of_its_data(
    change: dict[str, object], reason: str, tmp_path: Path
) -> None:
    place = folder_of_tables(tmp_path / "clients")
    there, refusals = Neighbourhood(tmp_path, sites_of(place)), []

    def meddle(client: int, request: bytes, answer: bytes) -> bytes:
        head = Request.from_bytes(request).head
        if head.task is Ask.OPEN:
            other = RequestHead(
                task=head.task, plan=head.plan, reading=Reading.check(head.reading.model_dump() | change)
            )
            without = RequestHead(task=head.task, plan=head.plan)
            for asked in (other, without):
                refusals.append(Answer.from_bytes(there.sites[client].answer(Request(asked).to_bytes())).head.refused)
        return answer

    there.meddle = meddle
    there.coordinator(settings_for("fedavg", all_of(place), rounds=1)).run()
    assert all(reason in refused for refused in refusals[::2]), refusals
    assert all("was not told how all read theirs" in refused for refused in refusals[1::2])
    assert len(refusals) == 6


def test_sums_of_other_rows_than_a_site_has_are_refused(tmp_path: Path) -> None:
    place = folder_of_tables(tmp_path / "clients")
    there = Neighbourhood(tmp_path, sites_of(place))

    def meddle(client: int, request: bytes, answer: bytes) -> bytes:
        given = Answer.from_bytes(answer)
        if given.head.told is None or client != 1:
            return answer
        sums = given.head.told.sums.model_copy(update={"count": 10**6})
        told = given.head.told.model_copy(update={"sums": sums})
        return Answer(given.head.model_copy(update={"told": told})).to_bytes()

    there.meddle = meddle
    with pytest.raises(FederationError, match="site-1: sums of 1000000 rows, where it has 27"):
        there.coordinator(settings_for("fedavg", all_of(place)))


def test_a_run_that_names_no_data_is_for_what_the_sites_have(tmp_path: Path) -> None:
    place = texts(tmp_path / "clients")
    there = Neighbourhood(tmp_path, sites_of(place))
    new(tmp_path / "town", tuple(there.names), "localhost", 9440)
    values = {"rounds": 2, "batch_size": 16, **TEXT}
    run = queue(tmp_path / "town", "fedavg", values, "a-run")
    record = conduct(run, tuple(there.names), there, Rules(), lambda **known: None)
    assert (record.settings.data, record.settings.model) == ("own", ("auto",))
    assert record.class_names == ("cat", "dog", "owl")
    simulated = api.run("fedavg", data=f"{place}/", device="cpu", executor="loop", **values)
    assert record.rows == simulated.history


def test_of_too_many_words_the_most_frequent_are_told() -> None:
    counts = {"x" * 61: 9, **{f"word{number:06}": 1 + number % 7 for number in range(120_000)}}
    told = frequent(counts)
    assert len(told) == 100_000
    assert min(told.values()) == 2
    assert "x" * 61 not in told
    assert len(json.dumps(frequent({"é" * 50 + str(n): 1 for n in range(100_000)}), ensure_ascii=False)) < 4 << 20


def test_an_operator_sees_what_is_told(tmp_path: Path, cli: Callable[..., tuple[int, str, str]]) -> None:
    texts(tmp_path / "clients")
    new(tmp_path / "town", ("north", "south"), "localhost", 9440)
    folder = tmp_path / "town" / "north"
    words = ("site", folder, "--data", f"{tmp_path}/clients/", "--show-outgoing", "--method", "lg-fedavg")
    code, out, _ = cli(*words)
    assert code == 0
    said = " ".join(out.split())
    assert "told of this site's data before the first round: classes cat, dog; how often it has each of 8 words" in said
    assert "never leaves: extractor, all data" in said
