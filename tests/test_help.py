"""Getting around: every command shows an example, a shell completes names, and one method can be explained."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from typer.main import get_command

from fedexperts import recipes
from fedexperts.cli import app
from fedexperts.completion import method_names, recipe_names, tracker_names
from fedexperts.methods import registry
from fedexperts.trackers import KNOWN

Cli = Callable[..., tuple[int, str, str]]


def commands(group: object, *above: str) -> Iterator[tuple[str, ...]]:
    """All commands below a group, as they are typed."""
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        yield from commands(command, *above, name) if hasattr(command, "commands") else [(*above, name)]


@pytest.mark.parametrize("words", list(commands(get_command(app))), ids=" ".join)
def test_help_shows_an_example_of_the_command(cli: Cli, words: tuple[str, ...]) -> None:
    code, out, _ = cli(*words, "--help")
    assert code == 0
    assert f"Example: fedexperts {' '.join(words)} " in " ".join(out.split())


def test_the_first_help_lists_training_first_and_everything_in_full(cli: Cli) -> None:
    code, out, _ = cli("--help")
    listed = out.partition("Commands:")[2].partition("Example:")[0]
    assert code == 0
    assert listed.split()[:5] == ["run", "Train", "one", "method.", "compare"]
    assert "..." not in listed


def test_show_explains_a_method_as_methods_does(cli: Cli) -> None:
    shown = cli("show", "fedmoe")
    assert shown == cli("methods", "fedmoe")
    assert "global_expert" in shown[1]
    code, _, err = cli("show", "fedmo")
    assert (code, "did you mean 'fedmoe'" in err) == (2, True)


def test_names_that_are_completed_are_those_that_there_are() -> None:
    assert method_names("") == list(registry())
    assert tracker_names("") == sorted(KNOWN)
    assert tracker_names("mlflow,t") == ["mlflow,tensorboard"]
    assert tracker_names("mlflow,m") == []
    assert recipe_names("") == sorted(recipes.shipped())


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        (["rep"], ["report", "reproduce"]),
        (["run", "fedmoe"], ["fedmoe", "fedmoe-da", "fedmoe-heads"]),
        (["compare", "fedavg", "fedp"], ["fedpac", "fedper", "fedproto", "fedprox"]),
        (["show", "pm"], ["pm-moe"]),
        (["run", "fedavg", "--track", "tensorboard,"], ["tensorboard,mlflow", "tensorboard,wandb"]),
        (["run", "fedavg", "--executor", "s"], ["stacked"]),
        (["resume", "x", "--tr"], ["--track"]),
    ],
)
def test_a_shell_completes(typed: list[str], offers: list[str]) -> None:
    """As bash asks, in a process of its own; torch is never imported on the way."""
    asked = {"_FEDEXPERTS_COMPLETE": "complete_bash", "COMP_CWORD": str(len(typed))}
    asked["COMP_WORDS"] = " ".join(["fedexperts", *typed])
    code = (
        "import atexit, sys; from fedexperts.cli import main; atexit.register(lambda: print('torch' in sys.modules));"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [*offers, "False"], done.stderr
