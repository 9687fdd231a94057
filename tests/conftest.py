"""Fixtures for all tests."""

import os
import signal
from collections.abc import Callable

import pytest
import torch

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
