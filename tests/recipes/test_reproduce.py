"""`fedexperts reproduce` as people use it, with a small recipe of their own."""

import csv
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]

MINE = """
title = "Digits"
source = "Nobody 2024, Table 1"
claims = ["FedMoE is best."]
methods = ["standalone", "fedmoe"]

[settings]
data = "digits"
clients = 3
rounds = 2
device = "cpu"

[[cases]]
name = "Two classes"
x = 2
settings = { classes_per_client = 2 }
published = { standalone = 90, fedmoe = 95.5 }

[[cases]]
name = "Three classes"
settings = { classes_per_client = 3, gate_width = 8 }
methods = ["fedmoe"]
published = { fedmoe = "-" }
"""


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(MINE)


def rows(out: str = "out") -> list[dict[str, str]]:
    with open(f"{out}/mine/results.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def trained(out: str = "out") -> dict[str, int]:
    """When each run last wrote a round."""
    return {str(path.parent): path.stat().st_mtime_ns for path in Path(out).glob("runs/*/*/history.csv")}


def line(text: str, start: str) -> list[str]:
    """The words of the first line that starts so, spaces aside."""
    return next(row.split() for row in text.splitlines() if row.strip().startswith(start))


def test_measured_stands_beside_published_and_a_second_call_trains_nothing(cli: Cli) -> None:
    code, out, _ = cli("reproduce", "mine.toml", "--out", "out")
    assert code == 0
    assert "Two classes · FedMoE · seed 0: last" in out  # a line per run, without a terminal
    table = out[out.index("mine: Digits") :]
    standalone, fedmoe, _ = rows()
    assert [row["published"] for row in rows()] == ["90.0", "95.5", "-"]
    peak, selected = float(fedmoe["peak"]), float(fedmoe["selected"])
    gain = f"{selected - float(standalone['selected']):+.2f}"
    differences = [f"{peak - 95.5:+.2f}", f"{selected - 95.5:+.2f}"]
    figures = [f"{float(fedmoe[kind]):.2f}" for kind in ("last", "selected", "peak")]
    assert line(table, "FedMoE") == ["FedMoE", *figures, "95.50", *differences, gain]
    assert line(table, "Standalone")[-1] == "–"
    assert "failed" in table
    assert "which prints the peak" in " ".join(table.split())
    assert "The paper says: FedMoE is best." in table
    assert "NOT AS PUBLISHED" not in table
    assert int(fedmoe["up_bytes"]) > int(standalone["up_bytes"]) == 0
    text = Path("out/mine/results.md").read_text()
    assert f"| Two classes | FedMoE | {' | '.join([*figures, '95.50', *differences, gain])} |" in text
    assert "fedexperts reproduce mine.toml --out out" in text
    assert "device: cpu" in text
    assert "FedMoE" in Path("out/mine/two-classes.html").read_text()

    before = trained()
    assert len(before) == 3
    code, out, _ = cli("reproduce", "mine.toml", "--out", "out", "--executor", "loop")
    assert code == 0
    assert "seed 0: last" not in out
    assert out == table
    assert trained() == before


def test_only_some_are_run_and_those_that_are_there_are_shown(cli: Cli) -> None:
    assert cli("reproduce", "mine.toml", "--only", "standalone", "--out", "out")[0] == 0
    assert [(row["case"], row["method"]) for row in rows()] == [("Two classes", "standalone")]
    code, out, _ = cli("reproduce", "mine.toml", "--case", "two", "--seeds", "0,1", "--out", "out")
    assert code == 0
    assert [(row["method"], row["seed"]) for row in rows()] == [
        ("standalone", "0"), ("fedmoe", "0"), ("standalone", "1"), ("fedmoe", "1"),
    ]  # fmt: skip
    assert "4 runs; the recipe has 3" in out
    assert "±" in out
    code, out, _ = cli("reproduce", "mine.toml", "--only", "standalone", "--out", "out")
    assert [row["method"] for row in rows()] == ["standalone", "fedmoe"]  # with seed 0


def test_a_smaller_run_says_so_everywhere(cli: Cli) -> None:
    code, out, _ = cli("reproduce", "mine.toml", "--scale", 0.5, "--rounds", 3, "--only", "fedmoe", "--case", "two")
    assert code == 0
    says = "NOT AS PUBLISHED: scale 0.5 of the rounds and, as far as the clients allow, samples; 3 rounds"
    folder = Path("runs/reproduce/mine-scale-0.5-rounds-3")  # beside the runs of full size
    [row] = rows(str(folder))
    assert (row["rounds"], row["samples"], row["not_as_published"]) == ("3", "898", says)
    for text in (out, (folder / "mine/results.md").read_text(), (folder / "mine/two-classes.html").read_text()):
        assert says in " ".join(text.split())
    assert "898 of its 1,797 samples" in out
    saved = (folder / "runs/two-classes/fedmoe-seed0/settings.toml").read_text()
    assert "samples = 898" in saved


def test_divergence_is_a_result(cli: Cli) -> None:
    Path("mine.toml").write_text(MINE.replace('["standalone", "fedmoe"]', "{ standalone = { lr = 1e6 }, fedmoe = {} }"))
    code, out, _ = cli("reproduce", "mine.toml", "--out", "out")
    assert code == 0
    assert line(out[out.index("mine: Digits") :], "Standalone") == ["Standalone", *["diverged"] * 3, "90.00", *"–––"]
    assert "the loss of client" in out
    assert [row["last"] == "diverged" for row in rows()] == [True, False, False]
    assert "diverged (the loss of client" in Path("out/mine/two-classes.html").read_text()
    before = trained()
    code, again, _ = cli("reproduce", "mine.toml", "--out", "out")
    assert code == 0
    assert "diverged" in again
    assert trained() == before


def test_without_published_figures_there_is_nothing_to_compare_with(cli: Cli) -> None:
    lines = [line for line in MINE.splitlines() if not line.startswith("published")]
    Path("mine.toml").write_text("\n".join(lines))
    code, out, _ = cli("reproduce", "mine.toml", "--only", "standalone", "--out", "out")
    assert code == 0
    assert "publ" not in out
    assert len(line(out[out.index("mine: Digits") :], "Standalone")) == len(
        ["Standalone", "last", "selected", "peak", "gain"]
    )


def test_models_are_dropped_where_they_are_not_wanted(cli: Cli) -> None:
    words = ("reproduce", "mine.toml", "--only", "standalone", "--out", "out", "--drop-models")
    assert cli(*words)[0] == 0
    assert not list(Path("out").rglob("state"))
    assert cli(*words)[0] == 0


def test_an_interrupted_table_goes_on(cli: Cli) -> None:
    words = ("reproduce", "mine.toml", "--rounds", "12", "--checkpoint-every", "2", "--only", "fedmoe", "--out")
    command = [sys.executable, "-m", "fedexperts.cli", *words, "out"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run = Path("out/runs/two-classes/fedmoe-seed0")
    while not (run / "state" / "checkpoint.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "the last checkpoint is kept. To continue: the same command" in err
    assert not (run / "summary.json").exists()
    header, first, *rest = (run / "history.csv").read_bytes().splitlines(keepends=True)
    marked = first.replace(b"0.", b"9.", 1)  # what was done before stays as it is
    (run / "history.csv").write_bytes(b"".join([header, marked, *rest]))
    code, _, err = cli(*words, "out", "--case", "two")
    assert code == 0, err
    assert cli(*words, "whole", "--case", "two")[0] == 0
    whole = Path("whole/runs/two-classes/fedmoe-seed0/history.csv").read_bytes().splitlines(keepends=True)
    found = (run / "history.csv").read_bytes().splitlines(keepends=True)
    assert found == [header, marked, *whole[2:]]
    assert marked != first == whole[1]
    assert len(whole) == 1 + 12 * 3


def test_an_interrupt_ends_runs_side_by_side_and_they_go_on(cli: Cli) -> None:
    """Only the command itself hears of it, as with `kill -INT`; in a terminal all of its processes do."""
    Path("mine.toml").write_text(MINE.replace("rounds = 2", "rounds = 100000"))
    command = [sys.executable, "-m", "fedexperts.cli", "reproduce", "mine.toml", "--jobs", "2", "--out", "out"]
    process = subprocess.Popen(
        [*command, "--checkpoint-every", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    folder = Path("out/runs/two-classes")
    runs = [folder / f"{method}-seed0" / "state" / "checkpoint.json" for method in ("standalone", "fedmoe")]
    while not all(run.exists() for run in runs):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()  # which waits for all who could write there
    assert process.returncode == 130
    assert "interrupted; what is finished and the last checkpoints are kept. To continue: the same command" in err
    assert "Traceback" not in err
    assert not Path("out/runs/three-classes").exists(), "nothing new is begun"
    code, _, err = cli("reproduce", "mine.toml", "--finished", "--out", "out")
    assert (code, err.strip()) == (2, "error: no run of mine.toml is finished in out")


SAMPLES = 'published_mean = "samples"'


@pytest.mark.parametrize(
    ("change", "words", "says"),
    [
        (("rounds = 2", "roundz = 2"), (), "recipe mine.toml: unknown setting 'roundz' of standalone; did you mean"),
        (('"standalone", ', '"standalone", "fedmo", '), (), "recipe mine.toml: unknown method 'fedmo'; did you mean"),
        (("title", "titel"), (), "recipe mine.toml: setting 'title' is missing unknown setting 'titel'; did"),
        (("x = 2", "y = 2"), (), "recipe mine.toml: case 'Two classes': unknown setting 'y'"),
        (('fedmoe = "-"', 'fedmoe = "bad"'), (), "recipe mine.toml: case 'Three classes': setting 'published.fedmoe"),
        (('fedmoe = "-"', 'fedavg = "-"'), (), "has a published figure of 'fedavg', which is none of its methods"),
        (("Three", "two"), (), "two cases are called 'Two classes'"),
        (("rounds = 2", "seed = 2"), (), "name all in 'seeds'"),
        (("title", f'shows = "cost"\n{SAMPLES}\ntitle'), (), "in a figure of 'cost' all clients count alike"),
        (("title", f'shows = "traffic"\n{SAMPLES}\ntitle'), (), 'samples: give published_mean = "clients"'),
        (("title", f'shows = "clients"\n{SAMPLES}\ntitle'), (), "recipe mine.toml: in a figure of 'clients'"),
        (("title", 'name = "x"\ntitle'), (), "a recipe is called as its file is"),
        (("[settings]", "[settings"), (), "mine.toml is not a TOML file"),
        (('"digits"', '"digitz"'), ("--scale", 0.5), "recipe mine.toml: "),
        (('"digits"', '"digitz"'), (), "digitz"),
        (("", ""), ("--only", "fedavg"), "recipe mine has no method 'fedavg'; it has standalone, fedmoe"),
        (("", ""), ("--case", "four"), "no case of recipe mine has 'four' in its name; there are: Two classes; Three"),
        (("", ""), ("--only", "standalone", "--case", "three"), "no case of recipe mine with 'three' in its name has"),
        (("", ""), ("--scale", 0), "setting 'scale' cannot be 0"),
        (("", ""), ("--scale", 2), "setting 'scale' cannot be 2"),
        (("", ""), ("--seeds", "one"), "setting 'seeds.0' cannot be 'one'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_the_file_before_anything_runs(
    cli: Cli, change: tuple[str, str], words: tuple[object, ...], says: str
) -> None:
    Path("mine.toml").write_text(MINE.replace(*change, 1) if change[0] else MINE)
    code, _, err = cli("reproduce", "mine.toml", *words, "--out", "out")
    assert code == 2
    assert says in " ".join(err.split())
    assert "Traceback" not in err
    assert not Path("out").exists()


def test_side_by_side_is_the_same_as_one_after_another(cli: Cli) -> None:
    assert cli("reproduce", "mine.toml", "--out", "out")[0] == 0
    code, out, _ = cli("reproduce", "mine.toml", "--out", "both", "--jobs", "2")
    assert code == 0
    assert out.count("seed 0: last") == 3
    figures = ("case", "method", "last", "selected", "peak", "up_bytes", "flops")
    assert [[row[name] for name in figures] for row in rows("both")] == [
        [row[name] for name in figures] for row in rows("out")
    ]


CROWDED = """
from multiprocessing import parent_process
from pathlib import Path

import torch
from torch import nn


class Large(nn.Flatten):
    def forward(self, x):
        if parent_process() is not None and self.training:
            tried = Path(f"tried-{self.start_dim}")
            tried.write_text((tried.read_text() if tried.exists() else "") + "x")
            if tried.stat().st_size <= TIMES:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(x).flatten(1)


def large(shape, classes, start=1):
    return {"extractor": nn.Sequential(Large(start), nn.Linear(64, 8)), "head": nn.Linear(8, classes)}


def huge(shape, classes):
    return large(shape, classes, 2)
"""


def test_a_run_without_room_beside_others_goes_on_alone_and_is_an_error_then(cli: Cli) -> None:
    def crowd(times: int, fedavg: str, out: str) -> tuple[int, str, str]:
        """Two runs side by side. Of a model there is no room for the first steps that it tries, so many."""
        Path("crowded.py").write_text(CROWDED.replace("TIMES", str(times)))
        methods = f'methods = {{ standalone = {{ model = "crowded:large" }}, fedavg = {{ model = "{fedavg}" }} }}'
        recipe = MINE.replace('methods = ["standalone", "fedmoe"]', methods).replace("fedmoe = 95.5", "fedavg = 95.5")
        Path("mine.toml").write_text(recipe.split('[[cases]]\nname = "Three')[0])
        return cli("reproduce", "mine.toml", "--out", out, "--jobs", "2", "--executor", "loop")

    said = "Two classes · {} · seed 0 has no room beside the others and goes on later; side by side are now 1"
    code, out, err = crowd(10**6, "cnn5", "never")
    assert code == 2
    assert "error: Two classes · Standalone · seed 0: a client alone does not fit into the memory of cpu" in err
    assert said.format("Standalone") in out
    assert "FedAvg · seed 0: last" in out, "the other one is finished all the same"
    once = Path("tried-1").stat().st_size // 2  # so often it tries before it gives up, beside the other one and alone
    Path("tried-1").unlink()

    code, out, err = crowd(once, "crowded:huge", "later")
    assert (code, err) == (0, "")
    assert all(said.format(title) in out for title in ("Standalone", "FedAvg")), "neither of them has tried it alone"
    assert [row["method"] for row in rows("later")] == ["standalone", "fedavg"]


def test_several_recipes_share_their_runs(cli: Cli) -> None:
    Path("other.toml").write_text(
        'base = "mine.toml"\nsource = "Nobody 2024, Table 2"\nmethods = ["fedavg", "fedmoe"]\n'
        'title = "The same and another"\n' + MINE[MINE.index("[[cases]]") :].split("published")[0]
    )
    code, out, err = cli("reproduce", "other.toml", "mine.toml", "--out", "out", "--jobs", "2")
    assert (code, err) == (0, "")
    assert out.count("seed 0: last") == 4, "FedMoE with two classes is run once"
    assert out.index("other: The same and another") < out.index("mine: Digits")
    with open("out/other/results.csv", newline="", encoding="utf-8") as file:
        others = list(csv.DictReader(file))
    assert [row["method"] for row in others] == ["fedavg", "fedmoe"]
    assert [row["method"] for row in rows()] == ["standalone", "fedmoe", "fedmoe"]
    assert others[1] | {"recipe": "", "published": ""} == rows()[1] | {"recipe": "", "published": ""}
    assert (others[1]["published"], rows()[1]["published"]) == ("", "95.5")


def test_recipes_that_mean_different_runs_with_one_name_are_told_apart(cli: Cli) -> None:
    Path("other.toml").write_text(MINE.replace("rounds = 2", "rounds = 3"))
    code, _, err = cli("reproduce", "mine.toml", "other.toml", "--out", "out")
    assert code == 2
    assert "is another run in another of these recipes (rounds 3 and 2), and both would be in out/runs/two" in err
    assert not Path("out").exists()


def test_what_is_finished_is_shown_without_training_the_rest(cli: Cli) -> None:
    assert cli("reproduce", "mine.toml", "--only", "standalone", "--out", "out")[0] == 0
    before = trained()
    code, out, _ = cli("reproduce", "mine.toml", "--finished", "--out", "out")
    assert code == 0
    assert "1 runs; the recipe has 3." in out
    assert trained() == before


@pytest.mark.parametrize(
    ("shows", "extra", "found"),
    [
        ("clients", "", "FedMoE against FedPer, client by client: FedMoE is better for"),
        ("cost", "target = 0.5", "What 50 % costs: "),
        ("convergence", "", ""),
        ("gates", "", "The local expert weighs 0."),
        ("tsne", "", ""),
    ],
)
def test_a_figure_is_drawn_for_every_case(cli: Cli, shows: str, extra: str, found: str) -> None:
    gates = 'methods = ["fedmoe"]' if shows == "gates" else 'methods = ["standalone", "fedper", "fedmoe"]'
    Path("mine.toml").write_text(
        f'title = "A figure"\nsource = "nobody"\nshows = "{shows}"\n{gates}\n[settings]\ndata = "digits"\nclients = 4\n'
        f'rounds = 2\nsamples = 400\n[[cases]]\nname = "One"\n{extra}\n[[cases]]\nname = "Two"\n{extra}\n'
        "settings = { classes_per_client = 3 }\n"
    )
    code, out, error = cli("reproduce", "mine.toml", "--rounds", "2", "--out", "out")
    assert (code, error) == (0, "")
    assert found in " ".join(out.split())
    for case in ("one", "two"):
        page = Path(f"out/mine/{case}.html").read_text()
        assert "plotly" in page
        assert "NOT AS PUBLISHED: 2 rounds" in page


def test_a_sweep_is_one_figure_over_all_cases(cli: Cli) -> None:
    Path("mine.toml").write_text(
        'title = "A sweep"\nsource = "nobody"\nshows = "sweep"\naxis = "classes"\nmethods = ["standalone", "fedper"]\n'
        '[settings]\ndata = "digits"\nclients = 4\nrounds = 2\nsamples = 400\n'
        + "".join(f'[[cases]]\nname = "{n}"\nx = {n}\nsettings = {{ classes_per_client = {n} }}\n' for n in (2, 4))
    )
    assert cli("reproduce", "mine.toml", "--out", "out")[0] == 0
    page = Path("out/mine/digits.html").read_text()
    assert "Accuracy against classes<" in page  # as the recipe calls its axis


def test_a_figure_of_models_that_were_dropped_says_what_to_do(cli: Cli) -> None:
    Path("mine.toml").write_text(MINE.replace("[settings]", 'shows = "gates"\n[settings]', 1))
    code, _, error = cli("reproduce", "mine.toml", "--only", "fedmoe", "--out", "out", "--drop-models")
    assert code == 2
    assert "were dropped, and this figure asks them" in error


@pytest.mark.parametrize(
    ("shows", "found"),
    [
        ("traffic", "Traffic over the rounds: FedAvg: "),
        ("spectra", "Spectra of the sub-experts: FedEMoE (small): Of 9 sub-experts: "),
    ],
)
def test_a_shared_expert_is_shown_without_models(cli: Cli, shows: str, found: str) -> None:
    Path("mine.toml").write_text(
        f'title = "A tree"\nsource = "nobody"\nshows = "{shows}"\n[methods]\nfedavg = {{}}\n'
        'small = { method = "fedemoe", width = 8, hidden = 6, scale_every = 1 }\n'
        '[settings]\ndata = "digits"\nclients = 3\nrounds = 2\nsamples = 200\n[[cases]]\nname = "One"\n'
    )
    code, out, error = cli("reproduce", "mine.toml", "--out", "out", "--drop-models")
    assert (code, error) == (0, "")
    said = " ".join(out.split())
    assert found in said
    assert ("MB with 9 sub-experts" in said) == (shows == "traffic")
    assert not list(Path("out").rglob("state"))
    assert "plotly" in Path("out/mine/one.html").read_text()
