"""The scripts that measure run to their end, with two clients of twenty images."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize(
    ("script", "options", "finds"),
    [
        ("methods", ["--batch", "10", "--only", "fedavg,pm-moe"], ["| fedavg |", "| pm-moe |"]),
        (
            "pool",
            ["--bases", "lg-fedavg", "--executor", "stacked", "--group-size", "1"],
            ["| pool, MiB |", "| round, ms |", "| largest resident size, MiB |"],
        ),
        (
            "backbones",
            ["--batch", "10", "--only", "mobilenet"],
            ["| workers, ms |", "| stacked, ms |", "| auto takes |"],
        ),
    ],
)
def test_a_script_measures(script: str, options: list[str], finds: list[str], tmp_path: Path) -> None:
    small = ["--device", "cpu", "--clients", "2", "--images", "20", "--markdown", "table.md"]
    done = subprocess.run(
        [sys.executable, SCRIPTS / f"{script}.py", *small, *options],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    for row in finds:
        assert row in table
