"""Experts between sites: each serves what is in its spool to those on its list, and fetches from others' spools."""

import logging
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import grpc
from pydantic import Field

from fedexperts.config import Frozen
from fedexperts.errors import BusyError, FederationError
from fedexperts.federation.envelope import Name, Shelf, Version, What
from fedexperts.federation.spool import Spool
from fedexperts.federation.wire import Channel, serve

log = logging.getLogger(__name__)

SERVICE = "fedexperts.Peers"
WORKERS = 4
REQUEST_LIMIT = 4096
"""Bytes of a request; longer ones are not even taken off the wire."""


class Ask(Frozen):
    """What a peer may ask for; there is nothing else."""

    run: Name
    version: Version
    what: What


class Exchange(Frozen):
    """How a site deals with its peers."""

    seconds: float = Field(
        default=3.0, gt=0, description="that a peer has to give a part; then the site's own stands in"
    )
    calls_a_minute: float = Field(default=6000.0, gt=0, description="that one peer may make here")
    megabytes_a_minute: float = Field(default=6000.0, gt=0, description="that one peer may fetch from here")


USUAL = Exchange()


class Allowance:
    """What one peer may still have: a minute's worth at most, which comes back in a minute."""

    def __init__(self, a_minute: float, clock: Callable[[], float]) -> None:
        self._full = self._left = a_minute
        self._clock = clock
        self._at = clock()

    def spent(self) -> bool:
        now = self._clock()
        self._left = min(self._full, self._left + (now - self._at) * self._full / 60)
        self._at = now
        return self._left <= 0

    def take(self, amount: float) -> None:
        """More than is left may be taken, once: nothing is too big to be had at all."""
        self._left -= amount


class Allowances:
    """What every peer may still ask for, and get; one that takes it all is not in the others' way."""

    def __init__(self, exchange: Exchange, peers: Collection[str], clock: Callable[[], float]) -> None:
        self._exchange = exchange
        self._lock = threading.Lock()
        self._of = {
            name: (Allowance(exchange.calls_a_minute, clock), Allowance(exchange.megabytes_a_minute, clock))
            for name in peers
        }

    def ask(self, name: str) -> None:
        with self._lock:
            calls, megabytes = self._of[name]
            for spent, limit in (
                (calls.spent(), f"{self._exchange.calls_a_minute:g} calls"),
                (megabytes.spent(), f"{self._exchange.megabytes_a_minute:g} MB"),
            ):
                if spent:
                    raise BusyError(f"it has had its {limit} a minute")
            calls.take(1)

    def give(self, name: str, size: int) -> None:
        with self._lock:
            self._of[name][1].take(size / 1e6)


def serve_spool(
    spool: Spool,
    folder: Path,
    address: str,
    allowed: Collection[str],
    exchange: Exchange = USUAL,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[grpc.Server, int]:
    """Serve a spool to peers; it needs nothing but its files, so it may be a process of its own."""
    allowances = Allowances(exchange, allowed, clock)

    def fetch(name: str, request: bytes) -> bytes:
        allowances.ask(name)
        try:
            ask = Ask.model_validate_json(request)
        except ValueError:
            raise FederationError(f"a request for nothing that there can be: {request[:200]!r}") from None
        raw = spool.read(ask.run, ask.version, ask.what)
        allowances.give(name, len(raw))
        log.info("%s fetched %s of %s: %d bytes", name, ask.what, ask.version, len(raw))
        return raw

    return serve(SERVICE, {"Fetch": fetch}, folder, address, allowed, WORKERS, REQUEST_LIMIT)


class Peers:
    """Fetches from other sites, over connections that are kept. All that comes off the wire is counted."""

    def __init__(self, folder: Path, allowed: Collection[str], seconds: float = USUAL.seconds) -> None:
        """`seconds`: a peer that does not give its part in this time does not have it: the own expert stands in."""
        self.folder = folder
        self.allowed = allowed
        self.seconds = seconds
        self.bytes = 0
        self._channels: dict[tuple[str, str], Channel] = {}

    def fetch(self, shelf: Shelf, run: str, what: str) -> bytes:
        if shelf.site not in self.allowed:
            raise FederationError(f"{shelf.site!r} is not on the list of peers here")
        place = shelf.site, shelf.address
        if place not in self._channels:
            self._channels[place] = Channel(self.folder, shelf.address, shelf.site)
        ask = Ask(run=run, version=shelf.version, what=what).model_dump_json().encode()
        raw = self._channels[place].call(f"/{SERVICE}/Fetch", ask, self.seconds)
        self.bytes += len(raw)
        return raw

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
