"""Fixtures for all tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock

torch.set_num_threads(1)  # the tests themselves run side by side
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started from a shell's background; processes of ours inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["COLUMNS"] = "200"  # the console asks once, when it is made: not in a test, where it could be too late


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Call the command line in this process: exit code, output, errors."""
    from fedexperts.cli import main

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fedexperts", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as `make docs` builds it, once for all workers.

    Strict: what is wrong with links, their anchors or the menu is a warning, and a warning is an error.
    """
    shared = tmp_path_factory.getbasetemp()
    folder = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "site"
    with FileLock(f"{folder}.lock"):
        if not (folder / "sitemap.xml").exists():  # which comes last
            done = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
                cwd=Path(__file__).parent.parent,
                env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert "WARNING" not in done.stdout + done.stderr
    return folder
