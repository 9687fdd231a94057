"""The command line as people use it, and every kind of wrong input: one clear line, exit code 2, nothing written."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Cli = Callable[..., tuple[int, str, str]]
QUICK = ("--clients", 4, "--rounds", 2, "--device", "cpu")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDEXPERTS_DATA", raising=False)


def test_run_then_report(cli: Cli) -> None:
    code, out, _ = cli("run", "fedmoe", *QUICK, "--gate-width", 8, "--out", "mine")
    assert code == 0
    assert "FedMoE" in out
    assert "selected" in out
    assert "gate_width = [\n    8,\n]" in Path("mine/settings.toml").read_text()
    code, out, _ = cli("report", "mine", "--out", "page.html")
    assert code == 0
    assert Path("page.html").stat().st_size > 100_000


def test_a_profile_is_printed_and_belongs_to_the_run(cli: Cli) -> None:
    code, out, _ = cli("run", "fedavg", *QUICK, "--profile", "--out", "mine")
    assert code == 0
    assert [line.split()[0] for line in out[out.index("FedAvg, 2 rounds") :].splitlines()[2:10]] == [
        "training", "evaluation", "aggregation", "data", "saving", "waiting", "other", "all",
    ]  # fmt: skip
    assert Path("mine/trace.json").exists()
    assert "FedAvg, 2 rounds" in cli("resume", "mine")[1]  # it is finished


def test_a_run_that_goes_on_from_another_says_what_it_gains(cli: Cli) -> None:
    code, out, _ = cli("run", "pm-moe", *QUICK, "--gate-epochs", 2, "--out", "mine")
    assert code == 0
    assert "FedPer alone: " in out[out.index("selected = ") :]
    assert out.count("\nFedPer ") == 2  # in the table and below it
    assert "FedPer alone: " in cli("resume", "mine")[1]
    code, out, _ = cli("report", "mine", "mine/before")
    assert (code, out.count("FedPer alone: ")) == (0, 1)


def test_runs_get_folders_of_their_own(cli: Cli) -> None:
    assert cli("run", "standalone", *QUICK)[0] == 0
    assert cli("run", "standalone", *QUICK)[0] == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["standalone-digits-001", "standalone-digits-002"]


def test_compare_continues_and_skips(cli: Cli) -> None:
    words = (
        "compare",
        "fedmoe",
        "fedavg",
        "standalone",
        *QUICK,
        "--model",
        "cnn5,cnn4",
        "--gate-width",
        8,
        "--out",
        "all",
    )
    code, out, _ = cli(*words)
    assert code == 0
    assert "all run cnn4" in " ".join(out.split())
    assert Path("all/report.html").exists()
    assert "Standalone" in cli("report", "all")[1]
    before = Path("all/fedmoe/summary.json").stat().st_mtime_ns
    Path("all/fedavg/summary.json").unlink()
    assert cli(*words)[0] == 0
    assert Path("all/fedmoe/summary.json").stat().st_mtime_ns == before
    assert Path("all/fedavg/summary.json").exists()
    code, _, err = cli(*words, "--lr", 0.5)
    assert code == 2
    assert "other settings (lr)" in err


def test_settings_from_a_file_with_options_before_them(cli: Cli) -> None:
    Path("my.toml").write_text('clients = 4\nrounds = 9\ndevice = "cpu"\nlr = 0.2\n[fedmoe]\ngate_width = [8]\n')
    assert cli("run", "fedmoe", "--config", "my.toml", "--rounds", 1, "--out", "a")[0] == 0
    saved = Path("a/settings.toml").read_text()
    assert "rounds = 1" in saved
    assert "lr = 0.2" in saved
    # What a run saves repeats it.
    assert cli("run", "fedmoe", "--config", "a/settings.toml", "--out", "b")[0] == 0
    assert Path("a/history.csv").read_bytes() == Path("b/history.csv").read_bytes()
    assert Path("a/settings.toml").read_bytes() == Path("b/settings.toml").read_bytes()


def test_methods_and_data_are_listed(cli: Cli) -> None:
    assert "fedmoe" in cli("methods")[1]
    one = cli("methods", "fedmoe")[1]
    assert "global_expert" in one
    assert "--gate-width" in one
    assert "tiny-imagenet" in cli("data")[1]
    code, out, _ = cli("data", "--data", "digits", "--clients", 3, "--out", "labels.html")
    assert code == 0
    assert out.count("\n") == 2 + 3 + 1  # title, header, three clients, the page
    assert "…" not in out
    assert Path("labels.html").exists()


def npz(folder: str, **arrays: np.ndarray) -> None:
    Path(folder).mkdir()
    np.savez(f"{folder}/cifar10.npz", **arrays)


def one_sample_folder() -> None:
    """CIFAR-10's form with far too few images for ten clients."""
    images = np.zeros((12, 32, 32, 3), np.uint8)
    labels = np.arange(12) % 10
    npz("few", x_train=images, y_train=labels, x_test=images[:1], y_test=labels[:1])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "fedmo"), "unknown method 'fedmo'; did you mean 'fedmoe'"),
        (("run", "fedavg", "--roundz", 3), "unknown setting 'roundz' of fedavg; did you mean 'rounds'"),
        (("run", "fedavg", "--rounds", "many"), "Invalid value for '--rounds'"),
        (("run", "fedavg", "--rounds", 0), "setting 'rounds' cannot be 0"),
        (("run", "fedavg", "--participation", 1.5), "setting 'participation' cannot be 1.5"),
        (("run", "fedavg", "--optimizer", "lion"), "lion"),
        (("run", "fedavg", "--gate-width", 3), "unknown setting 'gate_width' of fedavg"),
        (("run", "fedmoe", "--gate-width", "wide"), "gate_width"),
        (("run", "fedavg", "--model", "resnet1"), "unknown model 'resnet1'"),
        (("run", "fedavg", "--data", "cifar11"), "'cifar11'"),
        (("run", "fedavg", "--data", "cifar10"), "FEDEXPERTS_DATA"),
        (("run", "fedavg", "--data", "cifar10", "--data-dir", "."), "cifar10.npz"),
        (("run", "fedavg", "--data", "cifar10", "--data-dir", "few"), "sample"),
        (("run", "fedavg", "--classes-per-client", 11), "11"),
        (("run", "fedavg", "--clients", 5000), "5,000 clients"),
        (("run", "fedavg", "--config", "none.toml"), "there is no settings file none.toml"),
        (("run", "fedavg", "--config", "broken.toml"), "broken.toml is not a TOML file"),
        (("run", "fedavg", "--device", "cuda"), "cuda"),
        (("run", "fedavg", "--device", "abacus"), "abacus"),
        (("run", "fedavg", "--device", "meta"), "meta"),
        (("run", "fedavg", "--config", "few"), "few is not a TOML file"),
        (("run", "fedmoe", "--config", "odd.toml"), "'fedmoe' must be a table"),
        (("run", "fedavg", "--out", "broken.toml"), "broken.toml exists"),
        (("run", "fedavg", "--out", "broken.toml/inner"), "broken.toml"),
        (("compare", "fedavg", "fedmoe", "--model", "cnn-pm", "--out", "both"), "cnn-pm ends in 512"),
        (("run", "standalone", "--lr", 1e8, "--out", "bad"), "loss of client"),
        (("resume", "nothing"), "there is no run folder nothing"),
        (("report", "nothing"), "there is no run folder nothing"),
        (("runn",), "runn"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_wrong_input(cli: Cli, words: tuple[object, ...], says: str) -> None:
    one_sample_folder()
    Path("broken.toml").write_text("rounds = = 3")
    Path("odd.toml").write_text("fedmoe = 3")
    before = sorted(Path().rglob("*"))
    code, _, err = cli(*words)
    assert code == 2
    assert says in " ".join(err.split())
    assert "Traceback" not in err
    if "bad" not in words:  # that one ran until its loss was no number
        assert sorted(Path().rglob("*")) == before


# --- real processes

LONG = ("run", "fedmoe", "--clients", "4", "--rounds", "12", "--device", "cpu", "--checkpoint-every", "2", "--out")


def start(folder: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "fedexperts.cli", *LONG, folder]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until_checkpoint(process: subprocess.Popen[str], folder: str) -> None:
    """Wait until there is a checkpoint, but not the last one."""
    manifest = Path(folder) / "state" / "checkpoint.json"
    while not manifest.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_kill_9_loses_at_most_a_checkpoint_and_resume_ends_in_the_same_bits(cli: Cli) -> None:
    process = start("killed")
    until_checkpoint(process, "killed")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not Path("killed/summary.json").exists()
    done = json.loads(Path("killed/state/checkpoint.json").read_text())["round"]
    rounds = Path("killed/history.csv").read_text().splitlines()
    assert 2 <= done <= 12
    assert int(rounds[-1].split(",")[0]) <= done + 2
    code, _, err = cli("report", "killed")
    assert code == 2
    assert "fedexperts resume killed" in err
    assert cli("resume", "killed")[0] == 0
    assert cli(*LONG, "whole")[0] == 0
    assert Path("killed/history.csv").read_bytes() == Path("whole/history.csv").read_bytes()
    for path in Path("whole/state").glob("*.safetensors"):
        same = next(Path("killed/state").glob(f"{path.name.split('.')[0]}.*.safetensors"))
        assert same.read_bytes() == path.read_bytes(), path.name


def test_ctrl_c_keeps_the_checkpoint_and_says_how_to_continue(cli: Cli) -> None:
    process = start("stopped")
    until_checkpoint(process, "stopped")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "To continue: fedexperts resume stopped" in " ".join(err.split())
    assert "Traceback" not in err
    assert cli("resume", "stopped")[0] == 0


def test_epsilon_stands_in_the_summary_and_beside_the_accuracy(cli: Cli) -> None:
    words = ("run", "fedavg", *QUICK, "--clip", 0.001, "--noise", 2, "--delta", 1e-4, "--out", "mine")
    code, out, _ = cli(*words)
    assert code == 0
    found = json.loads(Path("mine/summary.json").read_text())["privacy"]
    assert (found["clip"], found["noise"], found["delta"], found["rounds"]) == (0.001, 2, 1e-4, 2)
    assert f"FedAvg: ε = {found['epsilon']:.4g} at δ = 0.0001" in out
    assert f"ε = {found['epsilon']:.4g}" in cli("report", "mine")[1]
    code, _, err = cli("run", "fedproto", *QUICK, "--clip", 0.5, "--noise", 2, "--out", "other")
    assert (code, err.count("\n")) == (2, 1)
    assert "the part prototypes of a reply" in err
