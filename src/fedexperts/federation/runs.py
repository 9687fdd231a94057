"""Runs as the server's operator sees them: handed in as a folder, watched through the server's board."""

from collections.abc import Iterator, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedexperts.api import claim, first_phase, settings_for
from fedexperts.config import Settings
from fedexperts.errors import FederationError
from fedexperts.federation.envelope import Name
from fedexperts.federation.meeting import ANY_MODEL
from fedexperts.federation.places import RUNS, read_server
from fedexperts.federation.service import follow
from fedexperts.files import write_atomically
from fedexperts.measure import SETTINGS
from fedexperts.methods import method_class


def queue(folder: Path, method: str, values: Mapping[str, Any], name: str | None) -> Path:
    """Hand a run to the server: a folder with its settings. One of this name that is there already must be the same.

    A run that goes on from another names that one (`from`), or brings it: then two are handed in.
    """
    values, goes_on = _complete(folder, method, values)
    settings = settings_for(method, values)
    run = claim(folder / RUNS / method, numbered=True)[0] if name is None else folder / RUNS / _name(name)
    if goes_on and (beginning := method_class(method)(None, settings.options).begins()) and beginning.folder is None:
        first = run.with_name(_name(f"{run.name}-first"))
        _hand_in(first, first_phase(settings, beginning))
        settings = Settings.check(
            {**settings.model_dump(), "options": settings.options | {goes_on: str(first.absolute())}}
        )
    _hand_in(run, settings)
    return run


def _complete(folder: Path, method: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What is given, and what follows from the federation; and the option, if any, that names a run to go on from."""
    given = {**values, "clients": len(read_server(folder).sites)}
    from_ = method_class(method).goes_on_from
    option = f"{from_}_" if iskeyword(from_) else from_
    if named := given.pop(from_, None) or given.pop(option, None):
        first = folder / RUNS / _name(Path(str(named)).name)
        if not (first / SETTINGS).exists():
            known = ", ".join(sorted(path.parent.name for path in (folder / RUNS).glob(f"*/{SETTINGS}"))) or "none"
            raise FederationError(f"{folder} has no run '{named}' to go on from; its runs are: {known}")
        given[option] = str(first.absolute())
    elif not values.keys() & {"data", "model"}:
        given |= {"data": "own", "partition": "own", "model": ANY_MODEL}  # it is for whatever the sites have
    return given, option


def _name(name: str) -> str:
    try:
        return str(TypeAdapter(Name).validate_python(name))
    except ValidationError:
        raise FederationError(f"a run's name is of small letters, digits and '-', not {name!r}") from None


def _hand_in(run: Path, settings: Settings) -> None:
    if (run / SETTINGS).exists():
        if Settings.saved(run / SETTINGS).defining() != settings.defining():
            raise FederationError(f"{run} is there already with other settings; choose another --name")
        return
    run.mkdir(parents=True, exist_ok=True)
    write_atomically(run / SETTINGS, settings.to_toml())


def progress(folder: Path, run: Path) -> Iterator[str]:
    """A line whenever something happens in a run, until it is over."""
    last = ""
    for known in follow(folder, run):
        if line := _line(known):
            if line != last:
                yield line
            last = line


def _line(known: Mapping[str, Any]) -> str:
    if not known:
        return ""
    if not known.get("round") and "doing" not in known:
        return f"waiting for {', '.join(known.get('waiting', []))}"
    accuracy = f", test accuracy {100 * known['accuracy']:.2f} %" if "accuracy" in known else ""
    absent = f", without {', '.join(known['absent'])}" if known.get("absent") else ""
    return f"round {known.get('round', 0)} of {known['rounds']}{accuracy}{absent}"
