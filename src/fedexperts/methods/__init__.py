"""Every method by name. A new file in this folder that defines a `Method` with a name is a new method."""

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

from fedexperts.errors import MethodError, suggestion
from fedexperts.methods.base import Batch, Method, Model, Reply, Round, Stage, Trained
from fedexperts.methods.message import Channel, Message, Owner, State, part_of, select


@cache
def registry() -> dict[str, type[Method]]:
    """Name → class, of this folder and of installed packages with the entry point `fedexperts.methods`."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    defined = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    defined += [entry.load() for entry in entry_points(group="fedexperts.methods")]
    found = {kind.name: kind for kind in defined if issubclass(kind, Method) and "name" in vars(kind)}
    return dict(sorted(found.items()))


def method_class(name: str) -> type[Method]:
    known = registry()
    if name not in known:
        raise MethodError(f"unknown method '{name}'{suggestion(name, known)} Known: {', '.join(known)}")
    return known[name]


__all__ = [
    "Batch", "Channel", "Message", "Method", "Model", "Owner", "Reply", "Round", "Stage", "State", "Trained",
    "method_class", "part_of", "registry", "select",
]  # fmt: skip
