"""Experts between sites: each serves what is in its spool to those on its list, and fetches from others' spools."""

import logging
from collections.abc import Container
from pathlib import Path

import grpc

from fedexperts.config import Frozen
from fedexperts.errors import FederationError
from fedexperts.federation.envelope import Name, Shelf, Version, What
from fedexperts.federation.spool import Spool
from fedexperts.federation.wire import Channel, serve

log = logging.getLogger(__name__)

SERVICE = "fedexperts.Peers"
SECONDS = 3.0
"""A peer that does not give its part in this time does not have it: the own expert stands in."""
WORKERS = 4


class Ask(Frozen):
    """What a peer may ask for; there is nothing else."""

    run: Name
    version: Version
    what: What


def serve_spool(spool: Spool, folder: Path, address: str, allowed: Container[str]) -> tuple[grpc.Server, int]:
    """Serve a spool to peers; it needs nothing but its files, so it may be a process of its own."""

    def fetch(name: str, request: bytes) -> bytes:
        try:
            ask = Ask.model_validate_json(request)
        except ValueError:
            raise FederationError("a request that cannot be read") from None
        raw = spool.read(ask.run, ask.version, ask.what)
        log.info("%s fetched %s of %s: %d bytes", name, ask.what, ask.version, len(raw))
        return raw

    return serve(SERVICE, {"Fetch": fetch}, folder, address, allowed, WORKERS)


class Peers:
    """Fetches from other sites, over connections that are kept. All that comes off the wire is counted."""

    def __init__(self, folder: Path, allowed: Container[str], seconds: float = SECONDS) -> None:
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
