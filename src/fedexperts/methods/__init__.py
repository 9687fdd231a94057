"""Every method by name. A new file in this folder that defines a `Method` with a name is a new method."""

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

from fedexperts.config import Frozen
from fedexperts.errors import MethodError, the_method
from fedexperts.methods.base import (
    NOTHING,
    Batch,
    Beginning,
    ByClass,
    Method,
    Model,
    Reply,
    Round,
    Stage,
    Trained,
    Want,
)
from fedexperts.methods.message import Channel, Message, Owner, State, pack, part_of, select


@cache
def registry() -> dict[str, type[Method]]:
    """Name → class, of this folder and of installed packages with the entry point `fedexperts.methods`."""
    defined: list[object] = []
    for info in pkgutil.iter_modules(__path__):
        try:
            defined += vars(importlib.import_module(f"{__name__}.{info.name}")).values()
        except (ImportError, NameError, SyntaxError, TypeError, AttributeError) as error:
            raise MethodError(f"methods/{info.name}.py cannot be imported: {type(error).__name__}: {error}") from error
    defined += [entry.load() for entry in entry_points(group="fedexperts.methods")]
    found: dict[str, type[Method]] = {}
    for kind in defined:
        if not (isinstance(kind, type) and issubclass(kind, Method) and "name" in vars(kind)):
            continue
        if found.setdefault(kind.name, kind) is not kind:
            both = f"{found[kind.name].__module__} and {kind.__module__}"
            raise MethodError(f"two methods are called '{kind.name}': in {both}; a name belongs to one")
    return dict(sorted(found.items()))


def method_class(name: str) -> type[Method]:
    return the_method(name, registry())


__all__ = [
    "NOTHING", "Batch", "Beginning", "ByClass", "Channel", "Frozen", "Message", "Method", "Model", "Owner",
    "Reply", "Round", "Stage", "State", "Trained", "Want", "method_class", "pack", "part_of", "registry", "select",
]  # fmt: skip
