"""The reference: commands, settings, the public names of the package, recipes and examples, out of the code."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markup import cell, prose, table
from typer.main import get_command

import fedexperts
from fedexperts import recipes as shelf
from fedexperts.cli import app
from fedexperts.config import EngineSettings, Frozen, PrivacySettings, TaskSettings, TrainSettings

ROOT = Path(__file__).parent.parent.parent
GROUPS: dict[str, type[Frozen]] = {
    "Task": TaskSettings,
    "Training": TrainSettings,
    "Privacy": PrivacySettings,
    "Engine": EngineSettings,
}
PUBLIC = [
    "run",
    "Task",
    "Client",
    "Result",
    "load",
    "resume",
    "load_exported",
    "split",
    "Settings",
    "registry",
    "Method",
]
"""The order in which somebody needs them; what is not named comes last."""
PAPERS = {"fedmoe": "FedMoE", "fedmoe-da": "FedMoE-DA", "pm-moe": "PM-MoE", "fedemoe": "FedEMoE"}


def commands() -> str:
    """A section for each command: what its help says, and its own options."""
    return "\n\n".join(_command(words, command) for words, command in _commands(get_command(app)))


def _commands(group: Any, *above: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from _commands(command, *above, name)
        else:
            yield " ".join([*above, name]), command


def _command(words: str, command: Any) -> str:
    said, _, example = inspect.cleandoc(command.help).partition("Example: ")
    usage = " ".join(["fedexperts", words, *map(_shape, _arguments(command))])
    pieces = [f"## {words}", f"```text\n{usage} [OPTIONS]\n```", prose(said.strip())]
    own, taken = [[f"`{_shape(p)}`", cell(p.help or ""), "–"] for p in _arguments(command)], set()
    for option in (p for p in command.params if not _is_argument(p)):
        group = next((name for name, kind in GROUPS.items() if option.name in kind.model_fields), None)
        if group and not option.show_default:
            taken.add(group)
        elif option.name != "help":
            names = "/".join([*option.opts, *option.secondary_opts])
            own.append([f"`{names}`", cell(option.help or ""), _shown(option)])
    if own:
        pieces.append(table(["option", "what", "by itself"], own))
    if taken:
        kinds = ", ".join(f"[{name.lower()}](settings.md#{name.lower()})" for name in GROUPS if name in taken)
        more = ", and [the method's own](methods.md)" if words in ("run", "compare") else ""
        pieces.append(f"All settings are options too: {kinds}{more}.")
    return "\n\n".join([*pieces, f"Example: `{example.strip()}`"])


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _arguments(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if _is_argument(parameter)]


def _shape(argument: Any) -> str:
    name = argument.name.upper() + "…" * (argument.nargs == -1)
    return name if argument.required else f"[{name}]"


def _shown(option: Any) -> str:
    default = option.default
    return f"`{str(default).lower() if isinstance(default, bool) else default}`" if default not in (None, "") else "–"


def settings() -> str:
    """A table for each kind of settings."""
    pieces = []
    for name, kind in GROUPS.items():
        rows = []
        for field, info in kind.model_fields.items():
            default = ",".join(info.default) if isinstance(info.default, tuple) else info.default
            shown = str(default).lower() if isinstance(default, bool) else default
            rows.append([f"`{field}`", cell(info.description or ""), "–" if shown is None else f"`{shown}`"])
        pieces.append(
            f"## {name}\n\n{prose(inspect.getdoc(kind) or '')}\n\n{table(['setting', 'what', 'by itself'], rows)}"
        )
    return "\n\n".join(pieces)


def python() -> str:
    """The public names, with their signatures and what they say of themselves."""
    ordered = [*PUBLIC, *(name for name in fedexperts.__all__ if name not in PUBLIC)]
    return "\n\n".join(_public(name, getattr(fedexperts, name)) for name in ordered)


def _public(name: str, found: Any) -> str:
    pieces = [f"## {name}"]
    if inspect.isclass(found) and issubclass(found, Exception):
        return "\n\n".join([*pieces, prose(inspect.getdoc(found) or "")])
    if not (inspect.isclass(found) and issubclass(found, Frozen)):
        pieces.append(_signature(f"fedexperts.{name}", found))
    pieces.append(prose(inspect.getdoc(found) or ""))
    if inspect.isclass(found):
        if issubclass(found, Frozen):
            pieces.append("Its fields are the [settings](settings.md).")
        pieces += [_member(name, member, value) for member, value in vars(found).items() if _is_public(member, value)]
    return "\n\n".join(pieces)


def _is_public(name: str, value: Any) -> bool:
    callable_ = inspect.isfunction(value) or isinstance(value, classmethod | staticmethod | property)
    said = getattr(value, "__doc__", None) or getattr(getattr(value, "__func__", None), "__doc__", None)
    return callable_ and not name.startswith("_") and bool(said)


def _member(of: str, name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"### {of}.{name}\n\n{prose(inspect.getdoc(value) or '')}"
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return f"### {of}.{name}\n\n{_signature(name, function)}\n\n{prose(inspect.getdoc(function) or '')}"


def _signature(name: str, found: Any) -> str:
    signature = inspect.signature(found)
    kept = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    text = str(signature.replace(parameters=kept))
    text = re.sub(r"\b(?:fedexperts|collections|pathlib|typing|torch|numpy)\.(?:\w+\.)*", "", text)
    text = re.sub(r"'([A-Z]\w*)'", r"\1", text).replace("tuple[int, ...]", "tuple").removesuffix(" -> None")
    if len(name + text) > 85:
        text = re.sub(
            r"\((.*)\)", lambda m: "(\n    " + re.sub(r", (?=\*|\w+: )", ",\n    ", m[1]) + ",\n)", text, count=1
        )
    return f"```python\n{name}{text}\n```"


def recipes() -> str:
    """A section for each recipe, by paper."""
    pieces = []
    for paper, title in PAPERS.items():
        pieces.append(f"## {title}")
        pieces += [_recipe(name) for name in shelf.shipped() if name.startswith(f"{paper}/")]
    return "\n\n".join(pieces)


def _recipe(name: str) -> str:
    found = shelf.read(name)
    methods = list(dict.fromkeys(label for case in found.cases for label in found.methods_of(case)))
    shown = "A table" if found.shows == "table" else f"The figure of `analyse {found.shows}`"
    over = f" over {found.axis}" if found.axis else ""
    held = f"beside the paper's figures, as *{found.published_as}*" if found.published else "without published figures"
    pieces = [
        f"### {name}",
        f"**{prose(found.title)}** ({prose(found.source)}). {shown}{over}, {held}. {found.runs} runs: "
        f"{len(found.cases)} cases; {', '.join(methods)}.",
    ]
    if said := _head(found.path):
        pieces.append(said)
    if found.claims:
        pieces.append("The paper says:\n\n" + "\n".join(f"- {prose(claim)}" for claim in found.claims))
    return "\n\n".join(pieces)


def _head(path: Path) -> str:
    """The comment at the head of a file: what the paper leaves open."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    text = prose("\n".join(lines))
    return re.sub(r"(?<!^)(?<!\n)\n(?=- )", "\n\n", text, count=1)


def examples() -> str:
    """The examples' sources."""
    pieces = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8").rstrip()
        about = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]
        pieces.append(f"## {path.stem}\n\n{prose(about)}\n\n```python\n{source}\n```")
    return "\n\n".join(pieces)
