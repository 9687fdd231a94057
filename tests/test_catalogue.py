"""What can be known of methods and data sets without torch, which takes seconds to import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedexperts.catalogue import FILE, Catalogue, from_classes

METHOD = """
from fedexperts.methods import Method

class Mine(Method):
    "Of another package."
    name = "of-another-package"
"""


def answer(on_path: Path, *words: str, **environment: str) -> str:
    """What a process of its own says that finds other packages in a folder first."""
    places = [str(on_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = subprocess.run(
        [sys.executable, "-m", "fedexperts.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)} | environment,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--help"], "reproduce"),
        (["run", "--help"], "--lr"),
        (["methods"], "fedmoe-da"),
        (["methods", "fedmoe"], "--gate-width     neurons m of the gate"),
        (["data"], "tiny-imagenet"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_answers_without_torch(tmp_path: Path, words: list[str], says: str) -> None:
    assert says in answer(without_torch(tmp_path), *words)


def test_a_shell_completes_methods_without_torch(tmp_path: Path) -> None:
    typed = {"_FEDEXPERTS_COMPLETE": "complete_bash", "COMP_WORDS": "fedexperts run fedmoe-", "COMP_CWORD": "2"}
    assert answer(without_torch(tmp_path), **typed).split() == ["fedmoe-da", "fedmoe-heads"]


def without_torch(folder: Path) -> Path:
    (folder / "torch.py").write_text("raise SystemExit('torch was imported')")
    return folder


def test_the_catalogue_says_what_the_methods_say() -> None:
    written = Catalogue.model_validate_json(FILE.read_text(encoding="utf-8"))
    assert written == from_classes(), "a method, its options or its text has changed: make catalogue"


def test_methods_of_other_packages_are_in_it(tmp_path: Path) -> None:
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedexperts.methods]\nmine = mine:Mine\n")
    (tmp_path / "mine.py").write_text(METHOD)
    said = answer(tmp_path, "methods", COLUMNS="200")
    assert "of-another-package" in said
    assert "fedmoe" in said
