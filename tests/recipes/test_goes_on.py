"""Runs that go on where another run of their recipe ended, with its task and its models: PM-MoE over its bases."""

import csv
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from fedexperts import analyses
from fedexperts.measure import Record
from fedexperts.recipes import Choice, Reduction, plan, read

Cli = Callable[..., tuple[int, str, str]]

TABLE = """
title = "Digits"
source = "Nobody 2025"
published_mean = "samples"
seeds = [0]

[methods]
standalone = {}
fedper = { lr = 0.2 }
"fedper+pm-moe" = { method = "pm-moe", from = { run = "fedper" }, gate_lr = 0.5 }

[settings]
data = "digits"
model = "cnn-da"
partition = "dirichlet"
alpha = 1.0
clients = 4
samples = 300
rounds = 4
evaluate_every = 2
batch_size = 16
device = "cpu"

[[cases]]
name = "All digits"
settings = { pm-moe = { top = 2, gate_epochs = 3 } }
published = { fedper = 60.0, "fedper+pm-moe" = 61.5 }
"""
FIGURE = """
title = "By k"
source = "Nobody 2025"
base = "table.toml"
shows = "sweep"
axis = "k"
over = "top"

[methods]
"fedper+pm-moe" = { method = "pm-moe", from = { run = "fedper" }, gate_lr = 0.5, top = 2 }
"fedper+pm-moe-k3" = { method = "pm-moe", from = { run = "fedper" }, gate_lr = 0.5, top = 3 }
fedper = { lr = 0.2 }

[[cases]]
name = "All digits"
settings = { pm-moe = { top = 2, gate_epochs = 3 } }
"""
CURVES = """
title = "Over the rounds"
source = "Nobody 2025"
base = "table.toml"
shows = "convergence"

[[cases]]
name = "All digits"
settings = { pm-moe = { top = 2, gate_epochs = 3 } }
"""
RUNS = Path("out/runs/all-digits")


@pytest.fixture(autouse=True)
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.toml").write_text(TABLE)
    Path("figure.toml").write_text(FIGURE)
    Path("curves.toml").write_text(CURVES)


def rows(name: str = "table", out: str = "out") -> dict[str, dict[str, str]]:
    with open(f"{out}/{name}/results.csv", newline="", encoding="utf-8") as file:
        return {row["label"]: row for row in csv.DictReader(file)}


def drawn(page: str, series: str) -> list[float]:
    """The accuracies of a line in the page's only figure."""
    [figure] = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["figures"].values()
    points = csv.DictReader(figure["csv"].splitlines())
    return [float(point["mean test accuracy, %"]) for point in points if point["series"] == series]


def rewrite(folder: Path, scores: Mapping[int, tuple[Sequence[float], Sequence[float]]]) -> None:
    """The history as it were if the clients had these validation and test accuracies in the evaluated rounds."""
    with open(folder / "history.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    with open(folder / "history.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        for line in lines:
            if line["test_accuracy"]:
                validation, test = (own[int(line["client"])] for own in scores[int(line["round"])])
                line |= {"validation_accuracy": str(validation), "test_accuracy": str(test)}
            writer.writerow(line)


def test_it_has_its_settings_from_the_run_that_it_goes_on_from() -> None:
    _, base, mixed = plan(read("table.toml"), Path("out"), Choice(), Reduction())
    assert mixed.needs == (base,)
    options = mixed.settings.options
    assert (options["base"], options["top"], options["gate_lr"], options["gate_epochs"]) == ("fedper", 2, 0.5, 3)
    assert options["from_"] == str(base.folder.absolute())
    assert (options["pretraining"]["lr"], options["pretraining"]["rounds"]) == (0.2, 4)
    own = mixed.settings
    assert (own.rounds, own.evaluate_every, own.batch_size, own.device) == (1 + 3, 1, 16, "cpu")
    assert (own.samples, own.clients, own.model, own.alpha) == (300, 4, ("cnn-da",), 1.0)


@pytest.mark.parametrize(
    ("reduction", "rounds", "samples"), [({"rounds": 9}, 9, 300), ({"scale": 0.5}, 2, 240), ({"scale": 0.9}, 4, 270)]
)
def test_a_smaller_first_phase_leaves_the_gate_its_epochs(reduction: dict, rounds: int, samples: int) -> None:
    _, base, mixed = plan(read("table.toml"), Path("out"), Choice(), Reduction(**reduction))
    assert (base.settings.rounds, base.settings.samples) == (rounds, samples)
    assert (mixed.settings.rounds, mixed.settings.samples) == (4, samples)
    assert mixed.settings.options["pretraining"]["rounds"] == rounds


def test_the_table_has_the_papers_mean_and_what_the_mixture_is_worth(cli: Cli) -> None:
    code, out, _ = cli("reproduce", "table.toml", "--only", "fedper+pm-moe", "--rounds", 2, "--out", "out")
    assert code == 0
    found = rows()
    assert list(found) == ["fedper", "fedper+pm-moe"]
    for label, row in found.items():
        curve = Record.load(RUNS / f"{label}-seed0").curve
        by_samples = curve.test @ curve.test_samples / curve.test_samples.sum()
        assert by_samples.max() != curve.test.mean(axis=1).max()
        assert float(row["peak"]) == pytest.approx(100 * by_samples.max(), abs=1e-4)
        assert float(row["last"]) == pytest.approx(100 * by_samples[-1], abs=1e-4)
        assert row["mean_over"] == "samples"
    said, markdown = " ".join(out.split()), Path("out/table/results.md").read_text()
    for shown in (said, markdown):
        assert "mean over clients, weighted by their test samples" in shown
        assert "of 4 clients of all runs use theirs" in shown
    mixed = found["fedper+pm-moe"]
    assert found["fedper"]["base"] == ""
    assert mixed["base"] == found["fedper"]["last"]
    cells = [f"{float(mixed[name]):.2f}" for name in ("base", "mixture", "chosen")]
    row = f"| All digits | PM-MoE (fedper+pm-moe) | {' | '.join(cells)} | {mixed['used_by']} of 4 | "
    assert row in markdown
    assert f"{float(mixed['peak']) - 61.5:+.2f}" in said
    base, run = (Record.load(RUNS / f"{label}-seed0") for label in ("fedper", "fedper+pm-moe"))
    selected = analyses.mixture(run, samples=True).selected
    assert mixed["base_selected"] == found["fedper"]["selected"]
    assert found["fedper"]["base_selected"] == ""
    points = 100 * (np.array(analyses.mixture(run, samples=True).chosen.clients) - selected.base.clients)
    assert selected.base == base.figures_by(samples=True)["selected"]
    assert float(mixed["gain_selected"]) == pytest.approx(points.mean(), abs=1e-4)
    assert float(mixed["gain_selected_std"]) == pytest.approx(points.std(), abs=1e-4)
    assert float(mixed["gain_selected_worst"]) == pytest.approx(points.min(), abs=1e-4)
    lose, misled = int(mixed["gain_selected_lose"]), int(mixed["gain_selected_misled"])
    assert lose == (points < -1e-9).sum()
    assert f"| {float(mixed['base_selected']):.2f} | {points.mean():+.2f} | {points.std():.2f} | " in markdown
    assert f" | {lose} | {misled} |\n" in markdown
    assert f"base's selected round, which is what may be claimed: {points.mean():+.2f} points" in said
    assert "To use the mixture or not" in Path("out/table/all-digits.html").read_text()


def test_where_the_bases_run_is_gone_that_is_said(cli: Cli) -> None:
    command = ("reproduce", "table.toml", "--only", "fedper+pm-moe", "--rounds", 2, "--out", "out")
    assert cli(*command)[0] == 0
    shutil.rmtree(RUNS / "fedper-seed0")
    code, out, _ = cli(*command)
    assert code == 0
    assert "Over the base's selected round it is not known: its own run is not at hand." in " ".join(out.split())
    mixed = rows()["fedper+pm-moe"]
    assert mixed["gain"] != mixed["base_selected"] == mixed["gain_selected"] == ""
    assert " | – | – | – | – | – | – |\n" in Path("out/table/results.md").read_text()


def test_the_mixtures_round_is_the_selected_one_of_the_same_table(cli: Cli) -> None:
    command = ("reproduce", "table.toml", "--only", "fedper+pm-moe", "--rounds", 2, "--out", "out")
    assert cli(*command)[0] == 0
    folder = RUNS / "fedper+pm-moe-seed0"
    sizes = Record.load(folder).curve.test_samples
    large = sizes == sizes.max()
    assert large.sum() == 1  # round 2 is the best for three clients, round 3 for the one with the most samples
    validation = {1: np.zeros(4), 2: np.where(large, 0, 0.1 + 0 * sizes), 3: np.where(large, 0.29, 0), 4: np.zeros(4)}
    rewrite(folder, {number: (own, [number / 10] * 4) for number, own in validation.items()})
    record = Record.load(folder)
    assert [record.figures_by(samples)["selected"].round for samples in (False, True)] == [2, 3]
    assert cli(*command)[0] == 0
    mixed = rows()["fedper+pm-moe"]
    assert mixed["mixture"] == mixed["selected"] == "30.0000"


def test_who_is_misled_of_those_who_lose_over_the_bases_selected_round(cli: Cli) -> None:
    command = ("reproduce", "table.toml", "--only", "fedper+pm-moe", "--out", "out")
    assert cli(*command)[0] == 0
    nothing = ([0.0] * 4, [0.0] * 4)
    last = ([0.5] * 4, [0.6] * 4)
    rewrite(RUNS / "fedper-seed0", {2: ([0.9] * 4, [0.8] * 4), 4: last})
    mixture = ([0.95, 0.95, 0.6, 0.4], [0.7, 0.9, 0.7, 0.9])  # the last client does without it
    rewrite(RUNS / "fedper+pm-moe-seed0", {1: last, 2: nothing, 3: mixture, 4: nothing})
    assert cli(*command)[0] == 0
    base, run = (Record.load(RUNS / f"{label}-seed0").curve for label in ("fedper", "fedper+pm-moe"))
    at_best = {"base": base.rounds.tolist().index(2), "mixture": run.rounds.tolist().index(3)}
    lose = misled = 0
    for client in range(4):
        chosen = at_best["mixture"]
        if run.validation[chosen, client] <= run.validation[0, client]:
            chosen = 0
        if run.test[chosen, client] < base.test[at_best["base"], client]:
            lose += 1
            misled += bool(run.validation[chosen, client] > base.validation[at_best["base"], client])
    assert (lose, misled) == (
        3,
        1,
    )  # the validation data of client 0 were for it, those of clients 2 and 3 for round 2 of the base
    mixed = rows()["fedper+pm-moe"]
    assert (mixed["used_by"], mixed["base_selected"]) == ("3", "80.0000")
    assert (mixed["gain_selected_lose"], mixed["gain_selected_misled"]) == ("3", "1")
    assert float(mixed["gain_selected"]) == pytest.approx((-10 + 10 - 10 - 20) / 4)
    assert " | 3 | 1 |\n" in Path("out/table/results.md").read_text()


def test_other_gates_go_on_from_the_same_run_and_are_one_line_of_a_sweep(cli: Cli) -> None:
    assert cli("reproduce", "table.toml", "--out", "out", "--rounds", 2)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in RUNS.glob("*/history.csv")}
    code, out, _ = cli(
        "reproduce", "figure.toml", "--only", "fedper+pm-moe,fedper+pm-moe-k3", "--out", "out", "--rounds", 2
    )
    assert code == 0
    assert out.count("seed 0: last") == 1
    after = {path: path.stat().st_mtime_ns for path in RUNS.glob("*/history.csv")}
    assert after | before == after
    assert {path.parent.name for path in after.keys() - before.keys()} == {"fedper+pm-moe-k3-seed0"}
    page = Path("out/figure/digits.html").read_text()
    assert "Accuracy against k<" in page
    found = rows("figure")
    peaks = [float(found[label]["peak"]) for label in ("fedper+pm-moe", "fedper+pm-moe-k3")]
    assert drawn(page, "PM-MoE") == pytest.approx(peaks, abs=1e-3)  # by samples, as in the table
    assert "fedper+pm-moe" not in page[page.index('id="data"') :]  # what is drawn


def test_curves_count_samples_where_the_paper_does(cli: Cli) -> None:
    assert cli("reproduce", "curves.toml", "--only", "fedper+pm-moe", "--out", "out", "--rounds", 2)[0] == 0
    page = Path("out/curves/all-digits.html").read_text()
    assert "weighted by their test samples" in page
    for label, series in (("fedper", "FedPer"), ("fedper+pm-moe", "PM-MoE (fedper+pm-moe)")):
        curve = Record.load(RUNS / f"{label}-seed0").curve
        by_samples = 100 * (curve.test @ curve.test_samples) / curve.test_samples.sum()
        assert drawn(page, series) == pytest.approx(by_samples, abs=1e-3)
