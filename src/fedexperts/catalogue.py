"""The methods in words: what `fedexperts methods` shows, without importing them, and torch with them.

`catalogue.json` has it from the classes; `make catalogue` writes it, and a test holds it against them. Where it cannot
know of all methods (a new file in their folder, another package that brings some) the classes themselves are asked.
"""

import inspect
import json
import pkgutil
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from fedexperts.config import Frozen

FILE = Path(__file__).with_suffix(".json")
METHODS = "fedexperts.methods"
"""Our package of methods, and the entry point of other packages' own."""


class Entry(Frozen):
    """One method."""

    title: str
    source: str
    about: str
    owners: dict[str, str]  # part → who owns it
    options: dict[str, str]  # its own options, as on the command line → what each is


class Catalogue(Frozen):
    """All methods by name, and the files that they were found in."""

    files: tuple[str, ...]
    methods: dict[str, Entry]


def catalogue() -> dict[str, Entry]:
    """Every method by name."""
    if not entry_points(group=METHODS):
        written = Catalogue.check(json.loads(FILE.read_text(encoding="utf-8")))
        if written.files == _files():
            return written.methods
    return from_classes().methods


def from_classes() -> Catalogue:
    """What the methods say of themselves."""
    from fedexperts.methods import registry  # which imports torch

    methods = {
        name: Entry(
            title=kind.title,
            source=kind.source,
            about=inspect.getdoc(kind) or "",
            owners={part: owner.value for part, owner in kind.owners.items()},
            options=_options(kind.Options),
        )
        for name, kind in registry().items()
    }
    return Catalogue(files=_files(), methods=methods)


def _options(kind: type[Frozen]) -> dict[str, str]:
    """Each option's description, with its default."""
    found = {}
    for name, field in kind.model_fields.items():
        default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        shown = "" if default in (None, "", {}) else f"  [default: {default}]"
        found[name.rstrip("_").replace("_", "-")] = f"{field.description}{shown}"
    return found


def _files() -> tuple[str, ...]:
    """The modules that Python finds in the methods' folder."""
    package = find_spec(METHODS)
    assert package is not None
    return tuple(sorted(info.name for info in pkgutil.iter_modules(package.submodule_search_locations)))


if __name__ == "__main__":
    FILE.write_text(from_classes().model_dump_json(indent=1) + "\n", encoding="utf-8")
