"""The documentation as tests see it: its pages, the blocks and commands in them, and whether a command exists."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from typer.main import get_command

from fedexperts import recipes
from fedexperts.cli import app
from fedexperts.config import Settings
from fedexperts.methods import method_class, registry
from fedexperts.terminal import split_words

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
)
OTHER_PROGRAMS = {
    "source": "environments are made by make",
    "cd": "goes to another folder",
    "export": "sets variables of the shell",
    "rm": "removes what make made",
    "flwr": "Flower, which has an environment of its own",
    "flower-superlink": "Flower",
    "flower-supernode": "Flower",
    "tensorboard": "not ours",
    "ssh": "not ours",
}
"""Programs in the documentation that are neither run nor checked, and why."""
ONLY_CHECKED = {
    "make": "makes an environment",
    "pip": "the environment is there",
    "torchrun": "several processes: tests/engine",
}
"""Programs that are not run, and why; what they are given must exist."""
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|…")
"""What somebody has to put something of their own for."""


class Block(NamedTuple):
    """A fenced block: what it is, what it says, and the file that it is to be, where its first line names one."""

    kind: str
    text: str

    @property
    def file(self) -> str | None:
        found = re.match(r"# ([\w.-]+\.(?:py|toml))\n", self.text)
        return found[1] if found else None


def blocks(page: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", _text(page), re.DOTALL | re.MULTILINE)]


def in_passing(page: str) -> Iterator[list[str]]:
    """Commands that stand in sentences, or indented below a table of results."""
    text = re.sub(r"^```.*?^```$", "", _text(page), flags=re.DOTALL | re.MULTILINE)
    for command in re.findall(r"`(fedexperts [^`]+)`", text) + re.findall(r"^    (fedexperts .+)$", text, re.MULTILINE):
        yield shlex.split(re.sub(r"(?<=\s)\(.*", "", " ".join(command.split())))


def options_in_passing(page: str) -> set[str]:
    """Options that stand in sentences by themselves, or in the cells of a table."""
    return set(re.findall(r"`(--[a-z][a-z-]+)[ `=]", _text(page)))


def known_options() -> set[str]:
    """Of any command, and of any method."""

    def options(command: Any) -> Iterator[str]:
        for parameter in command.params:
            yield from (*parameter.opts, *parameter.secondary_opts)
        for inner in getattr(command, "commands", {}).values():
            yield from options(inner)

    own = {name.rstrip("_").replace("_", "-") for kind in registry().values() for name in kind.Options.model_fields}
    return {*options(get_command(app)), *(f"--{name}" for name in own), "--help"}


def commands(block: Block) -> Iterator[list[str]]:
    """Its commands as words, without comments and the variables that are set before them."""
    prompt = r"^\$ (.+)$" if block.kind == "console" else r"^(.+)$"
    for line in re.findall(prompt, block.text.replace("\\\n", " "), re.MULTILINE):
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words:
            yield [words[0].rpartition("/")[2], *words[1:]]


def has_placeholder(words: list[str]) -> bool:
    return any(map(PLACEHOLDER.search, words))


def check(words: list[str], folder: Path) -> None:
    """That a command exists, with all the options that it is given, and means something that there is."""
    program, rest = words[0], [word for word in words[1:] if word != "…"]
    if program == "fedexperts":
        _check_ours(rest)
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", _text("Makefile"), re.MULTILINE), f"make has no target {rest[0]}"
    elif program == "pip":
        extras = tomllib.loads(_text("pyproject.toml"))["project"]["optional-dependencies"]
        for extra in re.findall(r"fedexperts\[(\w+)\]", " ".join(rest)):
            assert extra in extras, f"there is no extra '{extra}'"
    elif "-m" in rest:  # python or torchrun
        module = rest.index("-m") + 1
        assert rest[module] == "fedexperts", words
        _check_ours(rest[module + 1 :])
    elif program == "python":
        assert (ROOT / rest[0]).exists() or (folder / rest[0]).exists(), f"there is no file {rest[0]}"
    else:
        assert program in OTHER_PROGRAMS, f"{' '.join(words)}: run it, or say in OTHER_PROGRAMS why not"


def _check_ours(words: list[str]) -> None:
    command: Any = get_command(app)
    if not words or words[0].startswith("--"):
        assert set(words) <= {option for parameter in command.params for option in parameter.opts} | {"--help"}, words
        return
    name = ""
    while hasattr(command, "commands"):
        if not words:
            return  # a group of commands is meant
        name = f"{name} {words[0]}".strip()
        assert words[0] in command.commands, f"there is no command `fedexperts {name}`"
        command, words = command.commands[words[0]], words[1:]
    if not words:
        return  # the command is meant, whatever it takes
    given = command.make_context(name, list(words))
    several = given.params.get("methods", [])
    methods, own = split_words([*several, *given.args], registry())
    methods += filter(None, [given.params.get("name" if name == "methods" else "method")])
    kinds = [method_class(method) for method in methods if not has_placeholder([method])]
    if not has_placeholder(methods):
        known = {option for kind in kinds for option in kind.Options.model_fields} | set(Settings.model_fields)
        unknown = [option for option in own if not {option, f"{option}_"} & known]
        assert not unknown, f"`fedexperts {name}` has no option {unknown}"
    for recipe in given.params["names"] if name == "reproduce" else ():
        if not recipe.endswith(".toml") and not has_placeholder([recipe]):
            labels = {label for case in recipes.read(recipe).cases for label in recipes.read(recipe).methods_of(case)}
            assert set((given.params["only"] or "METHOD").split(",")) <= labels | {"METHOD"}, words


def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")
