"""Runs as the server's operator sees them: handed in as a folder, watched through the server's board."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedexperts.api import claim, settings_for
from fedexperts.config import Settings
from fedexperts.errors import FederationError
from fedexperts.federation.envelope import Name
from fedexperts.federation.meeting import ANY_MODEL
from fedexperts.federation.places import RUNS, read_server
from fedexperts.federation.service import follow
from fedexperts.files import write_atomically
from fedexperts.measure import SETTINGS


def queue(folder: Path, method: str, values: Mapping[str, Any], name: str | None) -> Path:
    """Hand a run to the server: a folder with its settings. One of this name that is there already must be the same."""
    sites = read_server(folder).sites
    if not values.keys() & {"data", "model"}:
        values = {**values, "model": ANY_MODEL}  # it is for whatever data the sites have
    settings = settings_for(method, {**values, "clients": len(sites)})
    if name is None:
        run = claim(folder / RUNS / method, numbered=True)[0]
    else:
        try:
            run = folder / RUNS / TypeAdapter(Name).validate_python(name)
        except ValidationError:
            raise FederationError(f"a run's name is of small letters, digits and '-', not {name!r}") from None
    if (run / SETTINGS).exists():
        if Settings.saved(run / SETTINGS).defining() != settings.defining():
            raise FederationError(f"{run} is there already with other settings; choose another --name")
        return run
    run.mkdir(parents=True, exist_ok=True)
    write_atomically(run / SETTINGS, settings.to_toml())
    return run


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
