"""Every command and every piece of Python on the pages about own data, results and trackers does what it says."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import own
import pytest

Cli = Callable[..., tuple[int, str, str]]
DOCS = Path(__file__).parent.parent / "docs"


def pieces(page: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page: what they are, and what they say."""
    return re.findall(r"```(\w+)\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def test_own_data_and_using_results(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own.folder_of_arrays(tmp_path / "clients")
    own.folder_of_arrays(tmp_path, ("east",))
    ran = []
    for kind, text in [*pieces("own-data.md"), *pieces("using-results.md")]:
        if kind == "python" and text.startswith("# nets.py"):
            (tmp_path / "nets.py").write_text(text)
        elif kind == "python":
            exec(compile(text, "own-data.md", "exec"), {"__name__": "page"})
        elif kind == "sh":
            for line in text.splitlines():
                code, _, err = cli(*shlex.split(line)[1:])
                assert code == 0, (line, err)
                ran.append(shlex.split(line)[1])
    assert ran == ["data", "compare", "report", "run", "predict", "predict", "export", "predict", "adapt", "predict"]


def test_trackers(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, text in pieces("trackers.md"):
        if kind == "python":
            exec(compile(text, "trackers.md", "exec"), {"__name__": "page"})
        else:
            code, _, err = cli(*shlex.split(text)[1:])
            assert code == 0, (text, err)
    for folder in ("tracked/fedper/tensorboard", "tracked/standalone/tensorboard", "logs/first"):
        assert len(list(Path(folder).glob("events.out.tfevents.*"))) == 1, folder


def test_page(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line)[1:] for kind, text in pieces("page.md") if kind == "sh" for line in text.splitlines()]
    assert [words[0] for words in commands] == ["compare", *["report"] * 4]
    for words in commands:
        if "--figures" in words:  # draws with a browser: tests/browser
            continue
        code, _, err = cli(*words)
        assert (code, err) == (0, ""), words
    for page in ("demo/report.html", "page.html"):
        text = Path(page).read_text(encoding="utf-8")
        for chapter in re.findall(
            r"^\d\. \*\*([^*]+)\*\*", (DOCS / "page.md").read_text(encoding="utf-8"), re.MULTILINE
        )[1:]:
            assert f"<h2>{chapter}</h2>" in text or chapter == "Inside a method", chapter
        assert "<h2>Inside FedMoE</h2>" in text
    assert "Gate of" in Path("plain.html").read_text(encoding="utf-8")  # it was asked before, and stays
    assert "FedMoE" in Path("table.tex").read_text(encoding="utf-8")
