"""The examples run, and are short enough to be read."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "says"),
    [("hospitals", "fedmoe: north "), ("tables", "s joined and trained its head: "), ("texts", "fedper: ")],
)
def test_an_example(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) < 60
    runpy.run_path(str(path))["main"](rounds=1)
    assert says in capsys.readouterr().out
