"""The page of runs in progress: what it shows now, and whether that is news."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from threading import Lock
from time import monotonic

from fedexperts.config import Settings
from fedexperts.errors import FedExpertsError
from fedexperts.measure import HISTORY, LABELS, SETTINGS, SUMMARY, Record
from fedexperts.report.page import page_of
from fedexperts.report.pieces import Pieces
from fedexperts.report.template import as_json, fill

FILES = (SETTINGS, LABELS, HISTORY, SUMMARY)
Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Known:
    """A run's folder as it was read last."""

    stamp: Stamp
    record: Record | None
    said: str  # how far it is, as HTML


class Watched:
    """Runs in some folders, which may still begin. A folder is read again only when its files have changed.

    A page is not made again before `pause` times as long as it took have gone by: the runs need the machine.
    """

    def __init__(self, find: Callable[[], Sequence[Path]], pause: float = 4) -> None:
        self._find, self._pause = find, pause
        self._known: dict[Path, Known] = {}
        self._lock = Lock()
        self._version, self._pieces = "", Pieces("")
        self._again = 0.0  # before this moment nothing is read again

    def page(self) -> str:
        """The whole page as it is now."""
        version, pieces = self._now()
        return fill(pieces.title, pieces.body, pieces.data(version), live=True)

    def news(self, seen: str) -> str | None:
        """What has changed for somebody who has seen that version, as JSON; None if nothing has."""
        version, pieces = self._now()
        if version == seen:
            return None
        return f'{as_json({"title": pieces.title, "body": pieces.body})[:-1]},"page":{pieces.data(version)}}}'

    def _now(self) -> tuple[str, Pieces]:
        with self._lock:  # browsers ask at the same time
            if (began := monotonic()) < self._again:
                return self._version, self._pieces
            stamps = {folder: _stamp(folder) for folder in self._find()}
            order = sorted(stamps, key=lambda folder: stamps[folder][0])  # as they began: a run keeps its colour
            version = json.dumps([[str(folder), stamps[folder]] for folder in order])
            if version != self._version:
                known = {folder: self._read(folder, stamps[folder]) for folder in order}
                self._version, self._pieces, self._known = version, _put_together(known), known
                self._again = monotonic() + self._pause * (monotonic() - began)
            return self._version, self._pieces

    def _read(self, folder: Path, stamp: Stamp) -> Known:
        known = self._known.get(folder)
        return known if known is not None and known.stamp == stamp else _known(folder, stamp)


def _stamp(folder: Path) -> Stamp:
    """When each file was changed last, and how long it is."""
    found = []
    for name in FILES:
        try:
            status = (folder / name).stat()
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def _known(folder: Path, stamp: Stamp) -> Known:
    try:
        record, rounds = Record.so_far(folder), Settings.saved(folder / SETTINGS).rounds
    except (FedExpertsError, ValueError, OSError) as error:
        return Known(stamp, None, f"{_name(folder)}<span>cannot be read: {escape(str(error))}</span>")
    finished, name = (folder / SUMMARY).exists(), _name(folder, record)
    if finished:
        return Known(stamp, record, f"{name}<span>finished</span>")
    done = int(record.rows[-1]["round"] or 0) if record else 0
    at = datetime.fromtimestamp(stamp[FILES.index(HISTORY)][0] / 1e9).strftime("%H:%M:%S")
    said = f"round {done} of {rounds}, at {at}" if record else "waits for its first evaluated round"
    return Known(stamp, record, f'{name}<progress value="{done}" max="{rounds}"></progress><span>{said}</span>')


def _name(folder: Path, record: Record | None = None) -> str:
    title = f"{escape(record.title)} " if record else ""
    return f'<strong>{title}</strong><span class="quiet">{escape(str(folder))}</span>'


def _put_together(known: dict[Path, Known]) -> Pieces:
    records = [one.record for one in known.values() if one.record is not None]
    if records:
        return page_of(records, _progress(known))
    pieces = Pieces("Waiting for a first round")
    pieces.add(*_progress(known))
    return pieces


def _progress(known: dict[Path, Known]) -> Iterator[str]:
    yield f'<ul class="progress" id="progress">{"".join(f"<li>{one.said}</li>" for one in known.values())}</ul>'
    if not known:
        yield '<p id="nothing-yet">No run is here yet: this page shows it when it begins.</p>'
    elif any((folder / SUMMARY).exists() is False for folder in known):
        yield '<p id="as-of-now" class="quiet">Some runs go on: every figure is as of now, and follows them.</p>'
