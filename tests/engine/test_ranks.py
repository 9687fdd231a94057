"""Several processes that do a run together come to what one comes to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedexperts import api
from fedexperts.engine.ranks import divided, not_one_each
from fedexperts.measure import FETCHES, HISTORY, LABELS, Record

HERE = Path(__file__).parent
PM_MOE = {
    "base": "fedper", "data": "digits", "clients": 4, "participation": 0.5, "rounds": 2, "samples_per_client": 40,
    "device": "cpu",
}  # fmt: skip


def torchrun(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Two processes on this machine with a thread each."""
    ours = [HERE, HERE.parent, HERE.parent / "methods", os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ours)), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_largest_go_first_to_who_has_least() -> None:
    assert divided({0: 1, 1: 5, 2: 3, 3: 3}, 2) == {1: 0, 2: 1, 3: 1, 0: 0}
    assert divided({7: 2.0}, 3) == {7: 0}


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (["a", "b"], ""),
        ([None, None], ""),
        (["a", "a"], "2 processes have 1 GPU between them, and each needs one of its own"),
        (["a", "a", "b"], "3 processes have 2 GPUs between them, and each needs one of its own"),
        (["a", None], "2 processes have 1 GPU between them, and each needs one of its own (1 see none)"),
        (["a", "a", None], "3 processes have 1 GPU between them, and each needs one of its own (1 see none)"),
    ],
)
def test_each_process_has_a_gpu_of_its_own_or_none_has_one(gpus: list[str | None], said: str) -> None:
    assert not_one_each(gpus) == said


@pytest.mark.federation  # it takes both cores for two minutes
def test_two_processes_are_as_one(tmp_path: Path) -> None:
    done = torchrun(HERE / "two_ranks.py", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0: all the same", "rank 1: all the same"]


def test_the_command_line_with_both_phases_of_a_run(tmp_path: Path) -> None:
    options = [word for name, value in PM_MOE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    done = torchrun("-m", "fedexperts", "run", "pm-moe", *options, "--out", "two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run:  two") == 1  # one of them speaks
    api.run("pm-moe", out=tmp_path / "one", **PM_MOE)
    for name in (HISTORY, LABELS, f"before/{HISTORY}"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name
    assert not (tmp_path / "two" / FETCHES).exists()
    assert Record.load(tmp_path / "two").totals == Record.load(tmp_path / "one").totals


def test_what_goes_wrong_at_one_is_said_once(tmp_path: Path) -> None:
    words = ["run", "fedper", "--data", "digits", "--clients", "3", "--rounds", "3", "--lr", "1e30", "--device", "cpu"]
    done = torchrun("-m", "fedexperts", *words, cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("error: the loss of client ") == 1, done.stderr
    assert 'Traceback (most recent call last):\n  File "<frozen' not in done.stderr.partition("error: the loss")[0]


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("cpu:0", "device 'cpu:0' would be that of all 2 processes; under torchrun there is: auto, cuda, cpu"),
        pytest.param(
            "auto",
            "2 processes have 1 GPU between them",
            marks=pytest.mark.skipif(torch.cuda.device_count() != 1, reason="needs one GPU"),
        ),
    ],
)
def test_processes_do_not_share_a_gpu(device: str, says: str, tmp_path: Path) -> None:
    words = ["run", "fedavg", "--data", "digits", "--clients", "3", "--rounds", "1", "--device", device]
    done = torchrun("-m", "fedexperts", *words, cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.count(f"error: {says}") == 1, done.stderr
