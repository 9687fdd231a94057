"""Every command and every piece of Python in the documentation does what it says.

Each page is followed from its first block to its last, in an empty folder, with two rounds of everything. What
cannot be run there is checked: that the command exists, and each of its options.
"""

import re
import runpy
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import own
import pages
import pytest
from support import sentences

from fedexperts.methods import registry

Cli = Callable[..., tuple[int, str, str]]
TOGETHER = {"docs/using-results.md": "docs/own-data.md"}
"""Pages that go on where another one ends."""
NOT_RUN = {
    "docs/fedemoe.md": "CIFAR, and hours; tests/test_cli_analyse.py asks a small run the same",
    "docs/federation.md": "servers and sites, which stay: tests/federation",
    "docs/pm-moe.md": "CIFAR, and hours; tests/test_cli_analyse.py asks a small run the same",
    "docs/results/fedemoe.md": "a GPU and hours",
    "docs/results/fedmoe-da.md": "a GPU and hours",
    "docs/results/fedmoe.md": "a GPU and hours",
    "fedexperts watch": "serves until it is stopped: tests/browser",
    "fedexperts federation demo": "processes: tests/federation",
    "fedexperts report demo --figures": "draws with a browser: tests/browser",
    "python examples/what_modules_tell.py": "needs a run on CIFAR-10",
}
"""Pages, and beginnings of commands, that are only checked, and why. So are commands with a placeholder, like DIR."""
PREPARED: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {}
AFTERWARDS: dict[str, Callable[[], None]] = {}


@pytest.fixture(autouse=True)
def _methods_as_they_were() -> Iterator[None]:
    """A page may install a method."""
    yield
    registry.cache_clear()


@pytest.mark.parametrize("page", [page for page in pages.PAGES if page not in TOGETHER])
def test_a_page(page: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    together = [page, *(later for later, first in TOGETHER.items() if first == page)]
    for each in together:
        if each in PREPARED:
            PREPARED[each](tmp_path, monkeypatch)
    for each in together:
        names: dict[str, object] = {"__name__": "page"}
        for block in pages.blocks(each):
            follow(each, block, names, cli)
        for words in pages.in_passing(each):
            pages.check(words, tmp_path)
        assert pages.options_in_passing(each) <= pages.known_options()
        if each in AFTERWARDS:
            AFTERWARDS[each]()


def follow(page: str, block: pages.Block, names: dict[str, object], cli: Cli) -> None:
    """Do what a block says."""
    assert block.kind in ("sh", "console", "python", "toml", "text"), f"{page}: say what this is: {block.text[:80]}"
    if block.kind == "toml" and page not in NOT_RUN:
        tomllib.loads(block.text)
    if block.file:
        Path(block.file).write_text(block.text, encoding="utf-8")
    elif block.kind == "python":
        exec(compile(re.sub(r"\brounds=\d+", "rounds=2", block.text), page, "exec"), names)
    elif block.kind in ("sh", "console"):
        for words in pages.commands(block):
            do(page, words, cli)


def do(page: str, words: list[str], cli: Cli) -> None:
    line = " ".join(words)
    pages.check(words, Path.cwd())
    if words[0] in {*pages.OTHER_PROGRAMS, *pages.ONLY_CHECKED} or pages.has_placeholder(words):
        return
    if page in NOT_RUN or any(line.startswith(beginning) for beginning in NOT_RUN):
        return
    if words[0] == "python":
        runpy.run_path(words[1], run_name="__main__")
        return
    code, _, err = cli(*quickly(words[1:]))
    assert (code, err) == (0, ""), (line, err)


def quickly(words: list[str]) -> list[str]:
    """The same command with two rounds and, of the embedded digits, a few."""
    if words[0] not in ("run", "compare", "adapt"):
        return words
    few = [] if {"--data", "--config"} & set(words) else ["--samples", "240"]
    return [*words, *few, "--rounds", "2"]  # what is said last counts


@pytest.mark.parametrize("page", pages.PAGES)
def test_links_lead_somewhere_in_the_repository_too(page: str) -> None:
    """As GitHub shows the pages; the site's own are checked where it is built."""
    path = pages.ROOT / page
    links = re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_what_is_not_run_is_there() -> None:
    blocks = [block for page in pages.PAGES for block in pages.blocks(page) if block.kind in ("sh", "console")]
    everything = [" ".join(words) for block in blocks for words in pages.commands(block)]
    for what in NOT_RUN:
        assert what in pages.PAGES or any(line.startswith(what) for line in everything), f"{what} is no more"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fedexperts rum fedavg", "no command"),
        ("fedexperts run fedavg --gate-width 3", "no option"),
        ("fedexperts run fedavg --rounds many", "valid integer"),
        ("fedexperts run fedmo", "did you mean 'fedmoe'"),
        ("fedexperts analyse gate mine", "no command"),
        ("fedexperts reproduce fedmoe/table9", "unknown recipe"),
        ("make tea", "no target tea"),
        ("pip install fedexperts[tea]", "no extra 'tea'"),
        ("python tea.py", "no file tea.py"),
        ("torchrun --nproc-per-node=2 -m fedexperts run tea", "unknown method 'tea'"),
        ("tea", "run it, or say"),
    ],
)
def test_a_command_that_is_not_there_is_found(words: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=re.escape(says)):
        pages.check(words.split(), tmp_path)


def prepared(page: str) -> Callable[[Callable[[Path, pytest.MonkeyPatch], None]], None]:
    """What a reader of a page has before it begins."""
    return lambda function: PREPARED.update({page: function})


def afterwards(page: str) -> Callable[[Callable[[], None]], None]:
    """What must be so when a page was followed."""
    return lambda function: AFTERWARDS.update({page: function})


@prepared("docs/own-data.md")
def _clients(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own.folder_of_arrays(folder / "clients")
    own.folder_of_arrays(folder, ("east",))
    monkeypatch.syspath_prepend(folder)


@prepared("README.md")
def _clients_and_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PREPARED["docs/own-data.md"](folder, monkeypatch)
    (folder / "new.npz").write_bytes((folder / "east" / "test.npz").read_bytes())
    (nets,) = (block for block in pages.blocks("docs/own-data.md") if block.file == "nets.py")
    (folder / "nets.py").write_text(nets.text, encoding="utf-8")


@prepared("docs/texts.md")
def _reviews(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "mine").mkdir()
    data = sentences(200)
    lines = [f"{text},{data.class_names[label]}" for text, label in zip(data.inputs, data.labels, strict=True)]
    (folder / "mine" / "reviews.csv").write_text("\n".join(["text,label", *lines]), encoding="utf-8")


@prepared("docs/own-method.md")
def _installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `pip install -e .` would leave: where the method is."""
    about = folder / "mine-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[fedexperts.methods]\nmine = mine:Mine\n")
    monkeypatch.syspath_prepend(folder)
    registry.cache_clear()


@afterwards("docs/trackers.md")
def _event_files() -> None:
    for folder in ("tracked/fedper/tensorboard", "tracked/standalone/tensorboard", "logs/first"):
        assert len(list(Path(folder).glob("events.out.tfevents.*"))) == 1, folder


@afterwards("docs/page.md")
def _chapters() -> None:
    said = (pages.ROOT / "docs/page.md").read_text(encoding="utf-8")
    for page in ("demo/report.html", "page.html"):
        text = Path(page).read_text(encoding="utf-8")
        for chapter in re.findall(r"^\d\. \*\*([^*]+)\*\*", said, re.MULTILINE)[1:]:
            assert f"<h2>{chapter}</h2>" in text or chapter == "Inside a method", chapter
        assert "<h2>Inside FedMoE</h2>" in text
    assert "Gate of" in Path("plain.html").read_text(encoding="utf-8")  # it was asked before, and stays
    assert "FedMoE" in Path("table.tex").read_text(encoding="utf-8")


@afterwards("docs/tutorial.md")
def _answers() -> None:
    answers = Path("answers.csv").read_text().splitlines()
    assert answers[0] == "sample,class,benign,malignant"
    assert len(answers) == 1 + 20
    assert Path("west-model/README.md").exists()
