"""Our own carrier: sites connect out to the server, ask for work and bring answers. Nothing connects in to a site."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from fedexperts.errors import FederationError, UnreachableError
from fedexperts.federation.envelope import Answer, AnswerHead
from fedexperts.federation.site import Site
from fedexperts.federation.wire import SIZE_LIMIT, Channel, serve

log = logging.getLogger(__name__)

SERVICE = "fedexperts.Hub"
SERVER = "server"
"""The server's name in its certificate."""
WAIT = 20.0
"""A site that asks for work waits so long for some; then it asks again, so both know that the other is alive."""
_TICKET = 16


@dataclass
class _Work:
    """A request that waits for its site."""

    request: bytes
    ticket: bytes = field(default_factory=lambda: uuid4().bytes)
    answer: bytes | None = None


class Hub:
    """The server's end: a place for each site where at most one request waits for its answer."""

    def __init__(self, folder: Path, address: str, sites: Sequence[str]) -> None:
        self.sites = sites
        self.seen: dict[str, float] = {}  # site → when it last asked or answered
        self._work: dict[str, _Work] = {}
        self._waiting: dict[str, object] = {}  # site → its last call that waits for work
        self._changed = threading.Condition()
        self._closed = False
        calls = {"Next": self._next, "Answer": self._answer}
        self._server, self.port = serve(SERVICE, calls, folder, address, sites, workers=2 * len(sites) + 4)

    def ask(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes]]:
        asked = {client: _Work(request) for client, request in requests.items()}
        end = time.monotonic() + seconds

        def answered() -> bool:
            return any(work.answer is not None for work in asked.values())

        with self._changed:
            self._work |= {self.sites[client]: work for client, work in asked.items()}
            self._changed.notify_all()
        try:
            while asked:
                with self._changed:
                    self._changed.wait_for(answered, end - time.monotonic())
                    done = {client: work.answer for client, work in asked.items() if work.answer is not None}
                if not done:
                    return
                for client, answer in done.items():
                    del asked[client]
                    yield client, answer
        finally:
            with self._changed:  # who comes later comes too late
                for client, work in asked.items():
                    if self._work.get(self.sites[client]) is work:
                        del self._work[self.sites[client]]

    def _next(self, name: str, _: bytes) -> bytes:
        this = object()

        def left() -> bool:
            return self._waiting[name] is not this

        with self._changed:
            self.seen[name] = time.time()
            self._waiting[name] = this
            self._changed.notify_all()  # a call that it left behind, when it was killed, must not keep a thread
            self._changed.wait_for(lambda: name in self._work or self._closed or left(), WAIT)
            if left():
                raise FederationError("it has asked again: this process has gone, or another one is this site too")
            work = self._work.get(name)
            return b"" if work is None else work.ticket + work.request

    def _answer(self, name: str, request: bytes) -> bytes:
        with self._changed:
            self.seen[name] = time.time()
            work = self._work.get(name)
            if work is None or work.ticket != request[:_TICKET]:
                raise FederationError("this answer comes too late, or to nothing that was asked")
            work.answer = request[_TICKET:]
            del self._work[name]
            self._changed.notify_all()
        return b""

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()  # nobody waits for work any more
        self._server.stop(grace=1).wait()


def _fitting(answer: bytes) -> bytes:
    """An answer that the server would not take off the wire says instead that it is one."""
    if len(answer) + _TICKET <= SIZE_LIMIT:
        return answer
    reason = f"its answer would have {len(answer):,} bytes, of at most {SIZE_LIMIT:,} that are carried"
    head = Answer.from_bytes(answer).head
    return Answer(AnswerHead(task=head.task, run=head.run, round=head.round, refused=reason)).to_bytes()


def attend(
    site: Site, folder: Path, address: str, back_off: float = 5.0, wanted: Callable[[], bool] = lambda: True
) -> None:
    """A site's end: ask for work, do it, bring the answer, as long as wanted. A server that is away is waited for."""
    channel, pause = Channel(folder, address, SERVER), 0.5
    try:
        while wanted():
            try:
                work = channel.call(f"/{SERVICE}/Next", b"", WAIT + 10)
                pause = 0.5
                if work:
                    answer = _fitting(site.answer(work[_TICKET:]))
                    channel.call(f"/{SERVICE}/Answer", work[:_TICKET] + answer, 60)
            except UnreachableError as error:
                log.info("%s; trying again in %.1f s", error, pause)
                time.sleep(pause)
                pause = min(2 * pause, back_off)
            except FederationError as error:
                log.warning("%s", error)
                time.sleep(pause)
    finally:
        channel.close()
