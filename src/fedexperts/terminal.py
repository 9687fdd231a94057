"""What all commands share: where they print, which runs are meant, and options that no command names."""

from collections.abc import Container
from pathlib import Path

from rich.console import Console

from fedexperts import torchrun
from fedexperts.errors import SettingsError

console = Console(quiet=not torchrun.leads())
OPEN_ENDED = {"allow_extra_args": True, "ignore_unknown_options": True}
"""For commands that take a method's own options."""


def run_folders(folders: list[Path]) -> list[Path]:
    """The runs that are meant: a folder of runs stands for them, files between folders for nothing."""
    found: list[Path] = []
    for folder in folders:
        inner = sorted(path.parent for path in folder.glob("*/settings.toml"))
        if (folder / "settings.toml").exists() or not inner:
            found += [folder] if folder.is_dir() or len(folders) == 1 or not folder.exists() else []
        else:
            found += inner
    return found


def split_words(words: list[str], names: Container[str] = ()) -> tuple[list[str], dict[str, str]]:
    """Words that no option claimed: those that stand alone, and `--name value` or `--name=value`, a method's own.

    An option takes the next word, unless that is another option or one of `names`.
    """
    rest, alone, values = list(words), [], {}
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            alone.append(word)
            continue
        name, has_value, value = word.removeprefix("--").partition("=")
        if not has_value:
            value = rest.pop(0) if rest and not rest[0].startswith("--") and rest[0] not in names else "true"
        values[name.replace("-", "_")] = value
    return alone, values


def no_more(words: list[str]) -> dict[str, str]:
    """The unclaimed options of a command that takes no more words."""
    alone, own = split_words(words)
    if alone:
        raise SettingsError(f"'{alone[0]}' is not an option; options begin with --")
    return own
