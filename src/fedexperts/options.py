"""Settings as options of the command line."""

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from fedexperts.config import Frozen


def takes(*kinds: type[Frozen]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field of these settings; it finds those that were used in `values`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        fields = {name: field for kind in kinds for name, field in kind.model_fields.items()}

        def wrapped(**arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in fields}
            command(**arguments, values={name: value for name, value in given.items() if value is not None})

        own = inspect.signature(command).parameters
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for name, p in own.items() if name != "values"]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(field))
            for name, field in fields.items()
        ]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        return wrapped

    return decorate


def _option(field: FieldInfo) -> Any:
    kind: Any = field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(choice for choice in get_args(kind) if choice is not type(None))
    default = field.default
    if get_origin(kind) is tuple:
        kind, default = str, ",".join(default)
    shown = "" if default is None else f"  [default: {str(default).lower() if isinstance(default, bool) else default}]"
    return Annotated[kind | None, typer.Option(help=f"{field.description}{shown}", show_default=False)]
