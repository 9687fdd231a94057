"""What a shell offers when somebody presses Tab. Names are read from files: importing them would wait for torch."""

from pathlib import Path

from fedexperts.catalogue import catalogue

HOME = Path(__file__).parent


def method_names(incomplete: str) -> list[str]:
    """The methods that there are."""
    return [name for name in catalogue() if name.startswith(incomplete)]


def tracker_names(incomplete: str) -> list[str]:
    """One tracker more after those that stand there already, with commas."""
    before, comma, last = incomplete.rpartition(",")
    names = sorted(file.stem for file in (HOME / "trackers").glob("[!_]*.py") if file.stem != "tracker")
    return [before + comma + name for name in names if name.startswith(last) and name not in before.split(",")]


def recipe_names(incomplete: str) -> list[str]:
    """The recipes that come with the package: PAPER/NAME."""
    names = (f"{file.parent.name}/{file.stem}" for file in (HOME / "recipes").glob("*/*.toml"))
    return sorted(name for name in names if name.startswith(incomplete))
