"""Who takes part: sites that are added to a federation or removed from it, between runs."""

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from fedexperts.config import read_toml
from fedexperts.errors import FederationError
from fedexperts.federation.hub import SERVER
from fedexperts.federation.places import (
    README,
    RUNS,
    SERVER_SETTINGS,
    SITE_SETTINGS,
    SiteSettings,
    add,
    check_host,
    check_names,
    read_server,
    readme,
)  # fmt: skip
from fedexperts.federation.service import waiting
from fedexperts.files import write_atomically

Names = Callable[[list[str]], list[str]]
"""A list of names → the list that it becomes."""


def admit(folder: Path, name: str, host: str | None = None) -> list[str]:
    """Give a new site its folder and certificate, and put it on everybody's list; the peers whose folder is not here.

    `host`: where its peers find it; without it where the server is, as for sites that were there from the beginning.
    """
    present = _between_runs(folder)
    if name in present:
        raise FederationError(f"{folder} has a site '{name}' already")
    check_names((*present, name))
    if host is not None:
        check_host(host)
    if (folder / name).exists():
        raise FederationError(f"{folder / name} is there already, of a site that was removed; move it away first")
    lists, elsewhere = _lists(folder, present, lambda names: [*names, name])
    known = [SiteSettings.of(folder / site) for site in present if site not in elsewhere]
    listening = int(read_server(folder).listen.rpartition(":")[2])
    server = known[0].server if known else f"{host or 'localhost'}:{listening}"
    port = max([listening, *(int(site.listen.rpartition(":")[2]) for site in known)]) + 1
    add(folder, name, f"{host or server.rpartition(':')[0]}:{port}", server, (*present, name))
    _write(folder, lists, (*present, name))
    return elsewhere


def dismiss(folder: Path, name: str) -> list[str]:
    """Take a site off everybody's list; its folder stays as it is. The peers whose folder is not here."""
    present = _between_runs(folder)
    if name not in present:
        raise FederationError(f"{folder} has no site '{name}', but {', '.join(present)}")
    left = tuple(site for site in present if site != name)
    if not left:
        raise FederationError(f"{name} is the last site of {folder}: a federation needs one")
    lists, elsewhere = _lists(folder, left, lambda names: [other for other in names if other != name])
    _write(folder, lists, left)
    return elsewhere


def _between_runs(folder: Path) -> tuple[str, ...]:
    """The sites, if none of them is in the middle of something."""
    sites = read_server(folder).sites
    if unfinished := waiting(folder / RUNS):
        names = ", ".join(run.name for run in unfinished)
        raise FederationError(f"{names} is not over, and is held to the sites that it began with; wait for its end")
    return sites


def _lists(folder: Path, sites: Sequence[str], change: Names) -> tuple[dict[Path, str], list[str]]:
    """The settings of the server and of these sites with their lists changed, and the sites whose file is not here."""
    server = folder / SERVER / SERVER_SETTINGS
    paths = {site: folder / site / SITE_SETTINGS for site in sites}
    texts = {path: _relisted(path, "peers", change) for path in paths.values() if path.exists()}
    return {server: _relisted(server, "sites", change), **texts}, [s for s, path in paths.items() if path not in texts]


def _relisted(path: Path, key: str, change: Names) -> str:
    """A settings file with one list changed, and every other line as its owner wrote it."""
    values = read_toml(path)
    names = change(values[key])
    plain = f"{key} = [{', '.join(json.dumps(name) for name in names)}]"
    before = path.read_text(encoding="utf-8")
    text = re.sub(rf"^{key}\s*=\s*\[[^\]]*\]", plain, before, count=1, flags=re.MULTILINE)
    if tomllib.loads(text) != values | {key: names}:
        raise FederationError(f"the list {key} in {path} is not written plainly; make it {plain} by hand")
    return text


def _write(folder: Path, lists: dict[Path, str], sites: tuple[str, ...]) -> None:
    for path, text in lists.items():
        write_atomically(path, text)
    write_atomically(folder / README, readme(folder, sites))
