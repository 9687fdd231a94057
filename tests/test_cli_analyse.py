"""`fedexperts analyse` as people use it, on real runs, and what it says to wrong input."""

from collections.abc import Callable
from pathlib import Path

import pytest

import fedexperts

Cli = Callable[..., tuple[int, str, str]]
QUICK = {"rounds": 2, "batch_size": 32, "device": "cpu"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedMoE, Standalone, PM-MoE and FedEMoE on one task, FedMoE with another rate of its gate, and FedMoE-DA."""
    folder = tmp_path_factory.mktemp("runs")
    task = fedexperts.Task.of(data="digits", clients=3, samples_per_client=60)
    fedexperts.run("fedmoe", task, out=folder / "fedmoe", gate_width=4, gate_lr=0.1, **QUICK)
    fedexperts.run("standalone", task, out=folder / "standalone", **QUICK)
    fedexperts.run("fedmoe", task, out=folder / "slow", gate_width=4, gate_lr=0.01, **QUICK)
    fedexperts.run("pm-moe", task, out=folder / "pm", gate_epochs=2, **QUICK)
    fedexperts.run("fedemoe", task, out=folder / "emoe", width=12, hidden=6, scale_every=1, **QUICK)
    peers = fedexperts.Task.of(data="digits", clients=3, samples_per_client=60, model="cnn-da")
    fedexperts.run("fedmoe-da", peers, out=folder / "da", experts=3, asked=2, **QUICK)
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("clients", "fedmoe", "standalone"), "FedMoE is better for"),
        (("clients", "fedmoe", "standalone", "--figure", "peak"), "FedMoE is better for"),
        (("cost", "fedmoe", "standalone"), "MB of a client"),
        (("cost", "fedmoe", "--target", 100), "not reached"),
        (("sweep", "fedmoe", "slow"), "gate_lr"),
        (("sweep", "fedmoe", "slow", "standalone", "--over", "gate-lr"), "Standalone"),
        (("convergence", "fedmoe", "standalone"), "page: convergence.html"),
        (("gates", "fedmoe", "--clients", "2,0"), "The local expert weighs"),
        (("tsne", "standalone", "--clients", 2, "--samples", 4), "page: tsne.html"),
        (("matrix", "da", "--experts"), "A client's experts are on average"),
        (("experts", "da", "--clients", "2,0"), "page: experts.html"),
        (("peers", "da", "--edges", 2), "fetches between"),
        (("traffic", "da", "standalone"), "(model cnn5): 0 MB through the server, 0 MB between"),
        (("traffic", "emoe"), "MB with 9 sub-experts; the last change was in round 1)"),
        (("tree", "emoe", "standalone"), "From 3 to 9 sub-experts (9 at most): 3 times one became a mixture"),
        (("spectra", "emoe"), "Of 9 sub-experts: "),
        (("use", "emoe"), "The shared expert is asked for "),
        (("mixture", "pm", "standalone"), "The mixture for all clients: "),
        (("pool", "pm", "standalone"), "A client's own module has on average "),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_every_question_is_answered_and_drawn(cli: Cli, runs: Path, words: tuple[object, ...], says: str) -> None:
    code, out, err = cli("analyse", *(runs / str(w) if (runs / str(w)).is_dir() else w for w in words))
    assert (code, err) == (0, "")
    assert says in out
    assert 'class="drawing"' in Path(f"{words[0]}.html").read_text(encoding="utf-8")


def test_the_report_shows_what_was_found_without_the_models(cli: Cli, runs: Path) -> None:
    code, _, _ = cli("analyse", "gates", runs / "fedmoe", runs / "standalone", "--out", "deep/page.html")
    assert code == 0
    assert Path("deep/page.html").exists()
    lines = (runs / "fedmoe" / "gates.csv").read_text().splitlines()
    assert lines[0] == "client,class,sample,global,local"
    assert len(lines) == 1 + 3 * 12
    assert not (runs / "standalone" / "gates.csv").exists()
    assert cli("analyse", "tsne", runs / "fedmoe", "--samples", 5)[0] == 0
    before = (runs / "fedmoe" / "representations.csv").read_bytes()
    assert before.count(b"\n") == 1 + 3 * 5
    assert cli("report", runs / "fedmoe")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert "Gate of FedMoE, by class" in page
    assert "Representations of FedMoE" in page
    assert cli("analyse", "tsne", runs / "fedmoe", "--samples", 5)[0] == 0
    assert (runs / "fedmoe" / "representations.csv").read_bytes() == before


def test_the_report_shows_experts_and_peers(cli: Cli, runs: Path) -> None:
    for kind in ("matrix", "experts"):
        assert cli("analyse", kind, runs / "da", runs / "standalone")[0] == 0
    matrix = (runs / "da" / "matrix.csv").read_text().splitlines()
    assert len(matrix) == 1 + 9 * 3  # nine experts, each of itself and two others
    assert cli("report", runs / "da")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    for heading in ("Experts of FedMoE-DA, by class", "Who is mixed of whom", "Who fetches from whom", "Traffic over"):
        assert heading in page
    assert not (runs / "standalone" / "matrix.csv").exists()


def test_the_report_shows_the_pool(cli: Cli, runs: Path) -> None:
    assert cli("analyse", "pool", runs / "pm", runs / "standalone")[0] == 0
    assert len((runs / "pm" / "pool.csv").read_text().splitlines()) == 1 + 3 * 3
    assert not (runs / "standalone" / "pool.csv").exists()
    assert cli("report", runs / "pm")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    for heading in ("To use the mixture or not", "Who gains by the mixture", "Whose modules are used", "What is taken"):
        assert heading in page


def test_the_report_shows_the_tree(cli: Cli, runs: Path) -> None:
    assert len((runs / "emoe" / "tree.csv").read_text().splitlines()) == 1 + 3 + 9
    assert cli("analyse", "use", runs / "emoe", runs / "standalone")[0] == 0
    assert len((runs / "emoe" / "use.csv").read_text().splitlines()) == 1 + 3
    assert cli("report", runs / "emoe")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    for heading in ("How the shared expert grew", "Spectra of the sub-experts", "Who uses which", "Traffic over"):
        assert heading in page
    assert not [*(runs / "fedmoe").glob("tree.csv"), *(runs / "standalone").glob("use.csv")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gates", "standalone"), "Standalone (standalone): no experts are weighed there"),
        (("gates", "fedmoe", "--clients", "0,3"), "--clients cannot be '0,3': there are 3 clients, numbered from 0"),
        (("tsne", "fedmoe", "--clients", "4"), "--clients cannot be '4': there are 3 clients"),
        (("tsne", "fedmoe", "--clients", "all"), "--clients cannot be 'all': a number, or clients with commas"),
        (("tsne", "fedmoe", "--clients", ","), "--clients cannot be ','"),
        (("tsne", "fedmoe", "--samples", "0"), "--samples"),
        (("tsne", "fedmoe", "--samples", "1"), "t-SNE needs at least 4 samples"),
        (("clients", "fedmoe"), "Missing argument 'other'"),
        (("clients", ".", "standalone"), "these folders hold 7; name the runs"),
        (("cost", "nothing"), "there is no run folder nothing"),
        (("cost", "empty"), "is not a run folder"),
        (("cost", "fedmoe", "--target", "101"), "--target"),
        (("sweep", "fedmoe", "standalone"), "do not differ in a setting that is a number"),
        (("sweep", "fedmoe", "slow", "--over", "gate_lrr"), "did you mean 'gate_lr'"),
        (("experts", "standalone"), "Standalone (standalone): no experts are weighed there"),
        (("experts", "da", "--clients", "0,3"), "--clients cannot be '0,3': there are 3 clients"),
        (("matrix", "fedmoe"), "FedMoE (fedmoe): no expert is mixed of others' there"),
        (("peers", "fedmoe"), "FedMoE (fedmoe): no client has fetched anything from another there (no fetches.csv)"),
        (("peers", "da", "--edges", "0"), "--edges"),
        (("mixture", "fedmoe"), "FedMoE (fedmoe): no modules are pooled there"),
        (("pool", "fedmoe"), "FedMoE (fedmoe): no modules are pooled there"),
        (("tree", "fedmoe"), "FedMoE (fedmoe): no shared expert grows or shrinks there (no tree.csv)"),
        (("spectra", "fedmoe"), "FedMoE (fedmoe): no shared expert that is made of others is there"),
        (("use", "fedmoe"), "FedMoE (fedmoe): no shared expert that is made of others is there"),
        (("weather", "fedmoe"), "weather"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_wrong_input(cli: Cli, runs: Path, words: tuple[str, ...], says: str) -> None:
    kind, *others = words
    code, _, err = cli("analyse", kind, *(runs / word if (runs / word).is_dir() else word for word in others))
    assert code == 2
    assert says in " ".join(err.split())
    assert "Traceback" not in err
    assert not list(Path().iterdir())


def test_every_kind_has_an_example(cli: Cli) -> None:
    for kind in (
        "clients", "cost", "sweep", "convergence", "gates", "tsne", "experts", "matrix", "peers", "traffic", "mixture",
        "pool", "tree", "spectra", "use",
    ):  # fmt: skip
        code, out, _ = cli("analyse", kind, "--help")
        assert code == 0
        assert f"Example: fedexperts analyse {kind} " in " ".join(out.split())
