"""Runs that begin with another run of their recipe."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from fedexperts.recipes import Choice, Reduction, plan, read

Cli = Callable[..., tuple[int, str, str]]

MINE = """
title = "Digits"
source = "Nobody 2024"
seeds = [0]

[methods]
fedjets = { top = 1, common = { run = "fedavg" } }
frozen = { method = "fedmoe-da", embedding = "frozen", pretrained = { run = "fedavg" } }
fedavg = {}

[settings]
data = "digits"
model = "cnn-da"
clients = 3
samples = 200
rounds = 2
device = "cpu"

[[cases]]
name = "Two classes"
published = { frozen = 61.5 }
"""
RUNS = Path("out/runs/two-classes")


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(MINE)


def write(*changes: tuple[str, str]) -> None:
    text = MINE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path("mine.toml").write_text(text)


def all_rows(out: str = "out") -> list[dict[str, str]]:
    with open(f"{out}/mine/results.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rows(out: str = "out") -> dict[str, dict[str, str]]:
    return {row["label"]: row for row in all_rows(out)}


def trained(out: str = "out") -> dict[str, int]:
    """When each run last wrote a round."""
    return {path.parent.name: path.stat().st_mtime_ns for path in Path(out).glob("runs/*/*/history.csv")}


def test_it_begins_with_the_run_of_the_same_case_and_seed() -> None:
    write(("seeds = [0]", "seeds = [3, 4]"))
    cells = plan(read("mine.toml"), Path("out"), Choice(), Reduction())
    assert [cell.label for cell in cells] == ["fedjets", "frozen", "fedavg"] * 2
    for jets, frozen, averaged in (cells[:3], cells[3:]):
        assert jets.needs == frozen.needs == (averaged,)
        assert jets.settings.options["common"] == str(averaged.folder.absolute())
        assert frozen.settings.options["pretrained"] == str(averaged.folder.absolute())
        assert averaged.settings.seed == jets.settings.seed
    assert (cells[1].method, cells[1].title, cells[1].folder.name) == (
        "fedmoe-da",
        "FedMoE-DA (frozen)",
        "frozen-seed3",
    )
    assert cells[0].title == "FedJETs"


def test_what_it_begins_with_is_made_first_and_then_used(cli: Cli) -> None:
    code, out, _ = cli("reproduce", "mine.toml", "--only", "fedjets", "--out", "out")
    assert code == 0
    assert out.index("FedAvg · seed 0: last") < out.index("FedJETs · seed 0: last")
    assert list(rows()) == ["fedjets", "fedavg"]  # what is there is shown
    assert "not pre-trained" not in out
    before = trained()
    code, out, _ = cli("reproduce", "mine.toml", "--out", "out")
    assert code == 0
    assert out.count("seed 0: last") == 1
    assert trained() | before == trained()
    assert rows()["frozen"]["method"] == "fedmoe-da"
    assert rows()["frozen"]["published"] == "61.5"
    table = out[out.index("mine: Digits") :]
    assert "FedMoE-DA (frozen)" in table
    assert "FedMoE-DA (frozen)" in Path("out/mine/two-classes.html").read_text()


def test_a_finished_recipe_may_be_moved(cli: Cli) -> None:
    assert cli("reproduce", "mine.toml", "--out", "out")[0] == 0
    Path("out").rename("elsewhere")
    before = trained("elsewhere")
    code, out, _ = cli("reproduce", "mine.toml", "--out", "elsewhere")
    assert (code, out.count("seed 0: last")) == (0, 0)
    assert trained("elsewhere") == before


def test_a_method_that_the_recipe_does_not_show_is_run_with_the_cases_settings(cli: Cli) -> None:
    write(("fedavg = {}\n", ""))
    assert cli("reproduce", "mine.toml", "--only", "frozen", "--out", "out")[0] == 0
    assert list(rows()) == ["frozen"]
    assert (RUNS / "fedavg-seed0/summary.json").exists()
    assert "samples = 200" in (RUNS / "fedavg-seed0/settings.toml").read_text()


def test_side_by_side_it_waits_for_what_it_begins_with(cli: Cli) -> None:
    assert cli("reproduce", "mine.toml", "--out", "out")[0] == 0
    code, out, error = cli("reproduce", "mine.toml", "--out", "both", "--jobs", "2", "--drop-models")
    assert (code, error) == (0, "")
    assert out.index("FedAvg · seed 0: last") < min(out.index("FedJETs · seed"), out.index("(frozen) · seed"))
    figures = ("last", "selected", "peak", "down_bytes", "peer_bytes", "flops")
    for label, row in rows().items():
        assert [rows("both")[label][name] for name in figures] == [row[name] for name in figures]
    assert not list(Path("both").rglob("state"))


def test_models_are_dropped_when_nobody_needs_them_any_more(cli: Cli) -> None:
    code, _, error = cli("reproduce", "mine.toml", "--out", "out", "--drop-models")
    assert (code, error) == (0, "")
    assert len(trained()) == 3
    assert not list(Path("out").rglob("state"))


def test_dropped_models_that_are_needed_say_what_to_do(cli: Cli) -> None:
    assert cli("reproduce", "mine.toml", "--only", "fedavg", "--out", "out", "--drop-models")[0] == 0
    code, _, error = cli("reproduce", "mine.toml", "--out", "out")
    assert code == 2
    said = " ".join(error.split())
    assert "out/runs/two-classes/fedavg-seed0 were dropped, and Two classes · FedJETs · seed 0 begins with them" in said
    assert list(trained()) == ["fedavg-seed0"]


def test_what_begins_with_a_run_that_diverged_cannot_be(cli: Cli) -> None:
    write(("fedavg = {}", "fedavg = { lr = 1e6 }"))
    code, out, error = cli("reproduce", "mine.toml", "--out", "out")
    assert (code, error) == (0, "")
    said = " ".join(out.split())
    assert "FedJETs · seed 0: diverged (it begins with Two classes · FedAvg · seed 0: diverged (client" in said
    assert {label: row["last"] for label, row in rows().items()} == dict.fromkeys(
        ["fedjets", "frozen", "fedavg"], "diverged"
    )
    assert list(trained()) == ["fedavg-seed0"]


def test_seeds_are_repetitions_although_each_begins_with_its_own_run(cli: Cli) -> None:
    write(("seeds = [0]", 'shows = "convergence"\nseeds = [0, 1]'))
    code, out, _ = cli("reproduce", "mine.toml", "--only", "frozen", "--out", "out")
    assert code == 0
    shown = [float(row["selected"]) for row in all_rows() if row["label"] == "frozen"]
    assert f"FedMoE-DA (frozen), 2 seeds: {sum(shown) / 2:.2f} ±" in " ".join(out.split())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('common = { run = "fedavg" }', 'common = { run = "fedavgg" }',
         "case 'Two classes': common of fedjets is the run 'fedavgg', which is neither in the recipe nor a method; did "
         "you mean 'fedavg'?"),
        ("common = { run = \"fedavg\" }", "common = { run = 3 }", "common of fedjets is the run 3, which is neither"),
        ("common = { run = \"fedavg\" }", 'common = { run = "fedjets" }',
         "case 'Two classes': runs begin with each other: fedjets → fedjets"),
        ("fedavg = {}", 'fedavg = { method = "fedmoe-da", embedding = "tuned", pretrained = { run = "frozen" } }',
         "'fedavg' is a method; call fedmoe-da with these settings something else"),
        ("fedavg = {}", 'a = { method = "fedjets", common = { run = "b" } }\n'
         'b = { method = "fedjets", common = { run = "a" } }', "runs begin with each other: a → b → a"),
        ("fedavg = {}", '"fed avg" = { method = "fedavg" }', "'fed avg' names a folder too"),
        ('method = "fedmoe-da"', 'method = "fedmoe-d"', "unknown method 'fedmoe-d'; did you mean 'fedmoe-da'?"),
        ('method = "fedmoe-da", ', "", "unknown method 'frozen'"),
        ("published = { frozen", "published = { fresh", "has a published figure of 'fresh', which is none of its"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(cli: Cli, old: str, new: str, says: str) -> None:
    write((old, new))
    code, _, error = cli("reproduce", "mine.toml", "--out", "out")
    assert code == 2
    assert says in " ".join(error.split())
    assert "Traceback" not in error
    assert not Path("out").exists()


def test_an_options_table_may_name_a_run_too(cli: Cli) -> None:
    write(
        ('common = { run = "fedavg" }', ""),
        ("top = 1, ", "top = 1"),
        ("[[cases]]", 'fedjets = { common = { run = "fedavg" } }\n[[cases]]'),
    )
    jets, _, averaged = plan(read("mine.toml"), Path("out"), Choice(), Reduction())
    assert jets.needs == (averaged,)
    assert not averaged.needs
    assert jets.settings.defining()["options"]["common"] == "fedavg-seed0"
