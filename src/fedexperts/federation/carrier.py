"""What a federation engine has to do for us: carry requests to sites and answers back. No more."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pydantic import Field

from fedexperts.config import Frozen
from fedexperts.errors import FederationError
from fedexperts.federation.envelope import Answer, ClientNumber, Profile, Request, RequestHead, Task
from fedexperts.files import write_atomically

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two questions to a site that has not said who it is."""


SITES = "sites.json"
"""The file that `Profiles` are kept in."""


class Carrier(Protocol):
    """Brings requests to sites and answers back, and knows nothing of what they are."""

    def ask(self, requests: Mapping[int, bytes], seconds: float) -> Iterable[tuple[int, bytes]]:
        """Answers as they come, until all are there or the time is over."""


class Profiles(Frozen):
    """All sites as they have presented themselves, by their clients' numbers."""

    of: dict[ClientNumber, Profile] = Field(default_factory=dict)


def introductions(carrier: Carrier, sites: Sequence[str], saved: Path, seconds: float) -> Mapping[int, Profile]:
    """Every site says what data it has; a run can begin when all have, and holds them to it: `saved` is the file."""
    found: dict[int, Profile] = {}
    if saved.exists():
        found = Profiles.model_validate_json(saved.read_text(encoding="utf-8")).of
    saved.parent.mkdir(parents=True, exist_ok=True)
    ask = Request(RequestHead(task=Task.PROFILE)).to_bytes()
    while missing := [client for client in range(len(sites)) if client not in found]:
        log.info("waiting for %s", ", ".join(sites[client] for client in missing))
        for client, raw in carrier.ask(dict.fromkeys(missing, ask), seconds):
            try:
                found[client] = profile = introduced(raw)
            except FederationError as error:
                log.warning("%s: %s", sites[client], error)
                continue
            log.info("%s has %d samples of shape %s", sites[client], profile.samples, profile.shape)
            write_atomically(saved, Profiles(of=found).model_dump_json())
        if any(client not in found for client in missing):
            time.sleep(PAUSE)  # who answers at once, and wrongly, is not asked all the time
    return found


def introduced(raw: bytes) -> Profile:
    """What a site says of itself, or why it does not."""
    head = Answer.from_bytes(raw).head
    if head.profile is None:
        raise FederationError(f"it does not say what data it has: {head.refused or 'nothing'}")
    return head.profile
