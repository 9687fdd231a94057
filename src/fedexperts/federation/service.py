"""The processes of a federation: a server that works off runs, and a site that attends."""

import datetime as dt
import fcntl
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedexperts.client import Client
from fedexperts.config import Settings, TaskSettings
from fedexperts.data import clients_in, is_folder
from fedexperts.environment import environment
from fedexperts.errors import DataError, FederationError, FedExpertsError, SettingsError, suggestion
from fedexperts.federation.absences import ABSENCES
from fedexperts.federation.asking import Rules
from fedexperts.federation.board import STATUS, Board
from fedexperts.federation.carrier import SITES, Carrier, introductions
from fedexperts.federation.certificates import expires
from fedexperts.federation.coordinator import Coordinator
from fedexperts.federation.holding import Holding, Own
from fedexperts.federation.hub import SERVER, Hub, attend
from fedexperts.federation.peers import Peers, serve_spool
from fedexperts.federation.places import RUNS, SiteSettings, read_server
from fedexperts.federation.site import SPOOL, Site
from fedexperts.federation.spool import Spool
from fedexperts.files import write_atomically
from fedexperts.given import with_model
from fedexperts.measure import LABELS, SETTINGS, STATE, SUMMARY, Record, privacy_of, write_labels
from fedexperts.methods import method_class
from fedexperts.models import check_model
from fedexperts.task import Task

log = logging.getLogger(__name__)

SOON = dt.timedelta(days=30)
"""A certificate that ends so soon is to be renewed."""
LOCK = "lock"
"""Held by the process that is a member, in its folder."""
FAILED = "failed.txt"
"""Says in a run's folder why it ended before its last round."""


def serve_runs(folder: Path) -> None:
    """Wait for runs and conduct them one after another, for ever; one that was interrupted is continued."""
    settings = read_server(folder)
    _dated(folder / SERVER)
    with _alone(folder / SERVER):
        hub = Hub(folder / SERVER, settings.listen, settings.sites)
        board = Board(folder / SERVER / STATUS)
        log.info("listening at %s", settings.listen)
        try:
            while True:
                board.note(seen=dict(hub.seen))
                for run in waiting(folder / RUNS):
                    board.known = {}
                    _conduct(run, settings.sites, hub, settings.rules, board)
                time.sleep(0.5)
        finally:
            hub.close()


def waiting(runs: Path) -> list[Path]:
    """Runs that are not over, the oldest first."""
    found = [path.parent for path in runs.glob(f"*/{SETTINGS}")]
    left = [run for run in found if not any((run / name).exists() for name in (SUMMARY, FAILED))]
    return sorted(left, key=lambda run: (run / SETTINGS).stat().st_mtime)


def _conduct(folder: Path, sites: tuple[str, ...], hub: Hub, rules: Rules, board: Board) -> None:
    def note(**known: object) -> None:
        board.note(seen=dict(hub.seen), **known)

    log.info("run %s: begins, or goes on", folder.name)
    try:
        conduct(folder, sites, hub, rules, note)
        log.info("run %s is over: %s", folder.name, folder)
    except FedExpertsError as error:
        log.warning("run %s ends: %s", folder.name, error)
        write_atomically(folder / FAILED, str(error))
        note(failed=str(error))


def conduct(folder: Path, sites: tuple[str, ...], carrier: Carrier, rules: Rules, note: Callable[..., None]) -> Record:
    """A run from wherever it stands to its end; one that it begins with comes first."""
    settings = Settings.saved(folder / SETTINGS)
    if (first := before(folder)) is not None and not (first / SUMMARY).exists():
        if (first / FAILED).exists():
            raise FederationError(f"run {first.name}, which this one begins with, has failed")
        conduct(first, sites, carrier, rules, note)
    note(run=folder.name, method=settings.method, rounds=settings.rounds, round=0, waiting=list(sites))
    profiles = introductions(carrier, sites, folder / STATE / SITES, rules.deadline)
    coordinator = Coordinator(folder.name, settings, sites, profiles, carrier, folder, rules, note)
    method, privacy = coordinator.method, privacy_of(coordinator)
    title = method.title or method.name
    coordinator.run()
    classes = coordinator.class_names
    nobodys = np.zeros((len(sites), len(classes)), np.int64)
    write_labels(folder / LABELS, classes, sites, nobodys)
    missing = (folder / ABSENCES).exists()
    record = Record(
        settings=settings,
        title=title,
        rows=coordinator.history.rows,
        counts=nobodys,
        class_names=classes,
        client_names=sites,
        notes=[
            *filter(None, [coordinator.note, method.note]),
            *method.remarks(coordinator.server),
            *(privacy.notes(title) if privacy else []),
            f"a federation of {', '.join(sites)}; who has which labels only they know",
            *([f"sites were missing at times ({ABSENCES}); a model counts as it last was"] * missing),
        ],
        environment=environment(torch.device("cpu")),
        seconds=coordinator.seconds,
        privacy=privacy,
        folder=folder,
    )
    record.save(folder)
    note(finished=True)
    return record


def before(run: Path) -> Path | None:
    """The folder of the run that another one begins with, if it does: beside its own."""
    settings = Settings.saved(run / SETTINGS)
    if not method_class(settings.method).goes_on_from:
        return None
    return next((run.parent / folder.name for folder in settings.begins_with.values()), None)


def model_in(settings: SiteSettings, given: Mapping[str, Any]) -> str | None:
    """The model that a site's operator chose, if that is not left to the server."""
    name: str | None = given.get("model", settings.model)
    if name is not None and "," in name:
        raise SettingsError(f"--model {name}: a site runs one model")
    return name and check_model(name)


def holding_of(settings: SiteSettings, given: Mapping[str, Any]) -> Holding:
    """The data that a site's settings and its operator's options name."""
    values = {**settings.data, **given}
    part = values.pop("part", None)
    values.pop("model", None)
    named = TaskSettings.check(with_model(values))
    if is_folder(named.data):
        place = _own_folder(Path(named.data_dir or "", named.data), settings.name if part is None else part)
        return Own(Client.read(place, image_size=named.image_size), named, settings.name, settings.tells)
    task = Task.of(named)
    return Holding.of(task, task.number(0 if part is None else part), settings.name)


def _own_folder(folder: Path, part: str | int) -> Path:
    """That of a folder of clients which is the site's, by its name or number; the only one there is may have any."""
    found = clients_in(folder)
    names = [path.name for path in found]
    if str(part) in names:
        return folder / str(part)
    if str(part).isdecimal() and int(part) < len(found):
        return found[int(part)]
    if len(found) == 1:
        return found[0]
    raise DataError(f"{folder} has no folder '{part}'{suggestion(str(part), names)}; --part is: {', '.join(names)}")


def site_in(folder: Path, given: Mapping[str, Any] | None = None) -> tuple[Site, Peers]:
    """The site that a folder is, and what it fetches from peers with."""
    settings = SiteSettings.of(folder)
    peers = Peers(folder, settings.peers, settings.exchange.seconds)
    given = given or {}
    own = settings.address, settings.compute, settings.leaves, settings.least_noise
    site = Site(folder, holding_of(settings, given), peers.fetch, *own, model=model_in(settings, given))
    return site, peers


def attend_site(folder: Path, given: Mapping[str, Any]) -> None:
    """Serve peers and do what the server asks, for ever."""
    settings = SiteSettings.of(folder)
    _dated(folder)
    with _alone(folder), served(folder):
        site, peers = site_in(folder, given)
        log.info("%s attends the server at %s", settings.name, settings.server)
        try:
            attend(site, folder, settings.server)
        finally:
            peers.close()


@contextmanager
def served(folder: Path) -> Iterator[None]:
    """Within it a site's spool is served to its peers."""
    settings = SiteSettings.of(folder)
    server, _ = serve_spool(Spool(folder / SPOOL), folder, settings.listen, settings.peers, settings.exchange)
    try:
        yield
    finally:
        server.stop(grace=1).wait()


def _dated(folder: Path) -> None:
    """Say in time that a member needs a new certificate."""
    end, now = expires(folder), dt.datetime.now(dt.UTC)
    if end < now + SOON:
        said = "ended" if end < now else "ends"
        log.warning(
            "the certificate in %s %s on %s: `fedexperts federation renew` makes a new one",
            folder,
            said,
            f"{end:%Y-%m-%d}",
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two processes must not be the same member: both would write its state."""
    with open(folder / LOCK, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FederationError(f"another process is {folder.name} already, in {folder}") from None
        yield


def attended(folder: Path) -> bool:
    """Whether a process is the member of this folder now."""
    try:
        with open(folder / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def follow(folder: Path, run: Path, seconds: float = 0.2) -> Iterator[Mapping[str, object]]:
    """What the server says of a run, again and again until it is over."""
    while not any((run / name).exists() for name in (SUMMARY, FAILED)):
        known = Board.read(folder / SERVER / STATUS)
        yield known if known.get("run") == run.name else {}
        time.sleep(seconds)
