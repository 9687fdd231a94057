"""Certificates, the peers' service and our own carrier, over real sockets."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from neighbourhood import Neighbourhood, settings_for
from support import assert_close, make_task

from fedexperts.errors import BusyError, FederationError, UnreachableError
from fedexperts.federation.asking import Rules
from fedexperts.federation.carrier import introductions
from fedexperts.federation.certificates import issue, make_authority
from fedexperts.federation.coordinator import Coordinator
from fedexperts.federation.envelope import Answer, Request, RequestHead, Shelf, Task
from fedexperts.federation.holding import Holding
from fedexperts.federation.hub import SERVER, SERVICE, WAIT, Hub, attend
from fedexperts.federation.peers import SERVICE as PEERS
from fedexperts.federation.peers import Exchange, Peers, serve_spool
from fedexperts.federation.site import Site
from fedexperts.federation.spool import Spool
from fedexperts.federation.wire import AT_ONCE, Channel, serve

TASK = make_task("cnn5/8", sizes=(20, 16, 12))
SHELF = Shelf(site="b", address="", version="000001-trained", digests={})


class Town:
    """Members a, b and c of one authority; a stranger who is known to it but on nobody's list; b serves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_authority(folder / "authority", "town")
        for name in ("a", "b", "c", "stranger", SERVER):
            issue(folder / "authority", folder / name, name)
        self.spool = Spool(folder / "b" / "spool")
        self.spool.fill("a-run", SHELF.version, {"experts.0": b"x" * 1000})
        self.server, port = serve_spool(self.spool, folder / "b", "localhost:0", ("a", "c"))
        self.address = f"localhost:{port}"

    def fetch(self, name: str, what: str = "experts.0", **changes: str) -> bytes:
        peers = Peers(self.folder / name, ("b", "c"), seconds=2)
        try:
            return peers.fetch(SHELF.model_copy(update={"address": self.address, **changes}), "a-run", what)
        finally:
            peers.close()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town"))
    yield made
    made.server.stop(0).wait()


def test_a_peer_gets_what_is_in_the_spool(town: Town) -> None:
    peers = Peers(town.folder / "a", ("b",))
    assert peers.fetch(SHELF.model_copy(update={"address": town.address}), "a-run", "experts.0") == b"x" * 1000
    assert peers.bytes == 1000
    peers.close()


def test_who_is_not_on_the_list_gets_nothing(town: Town) -> None:
    with pytest.raises(FederationError, match="'stranger' is not on the list of members"):
        town.fetch("stranger")
    with pytest.raises(FederationError, match="'a' is not on the list of peers here"):
        town.fetch("c", site="a")


def test_a_certificate_must_be_of_the_same_authority_and_not_be_old(town: Town, tmp_path: Path) -> None:
    make_authority(tmp_path / "authority", "elsewhere")
    issue(tmp_path / "authority", tmp_path / "a", "a")
    issue(town.folder / "authority", town.folder / "old", "a", days=-1)
    for folder in (tmp_path / "a", town.folder / "old"):
        peers = Peers(folder, ("b",), seconds=1)
        with pytest.raises(UnreachableError):
            peers.fetch(SHELF.model_copy(update={"address": town.address}), "a-run", "experts.0")
        peers.close()
    with socket.create_connection(town.address.split(":")) as plain:  # and not even a certificate
        plain.settimeout(2)
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"experts" not in plain.recv(1000)


def test_another_member_cannot_stand_in_for_a_peer(town: Town) -> None:
    """B answers, but c was meant: its certificate says another name."""
    with pytest.raises(UnreachableError):
        town.fetch("a", site="c")


def test_what_is_not_there_is_not_served(town: Town) -> None:
    for what in ("experts.1", "head"):
        with pytest.raises(FederationError, match="there is no"):
            town.fetch("a", what)


class Clock:
    """Time that stands still until it is told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def limited(town: Town) -> Iterator[tuple[Callable[[str], Callable[[], bytes]], Clock]]:
    """Who asks → fetch, at a site that gives each peer three calls or 0.0015 MB a minute."""
    clock, fetchers = Clock(), []
    exchange = Exchange(calls_a_minute=3, megabytes_a_minute=0.0015)
    server, port = serve_spool(town.spool, town.folder / "b", "localhost:0", ("a", "c"), exchange, clock)
    shelf = SHELF.model_copy(update={"address": f"localhost:{port}"})

    def fetching(name: str) -> Callable[[], bytes]:
        fetchers.append(Peers(town.folder / name, ("b",), seconds=30))
        return partial(fetchers[-1].fetch, shelf, "a-run", "experts.0")

    yield fetching, clock
    for peers in fetchers:
        peers.close()
    server.stop(0).wait()


def test_a_peer_gets_so_much_a_minute_and_the_others_theirs(
    limited: tuple[Callable[[str], Callable[[], bytes]], Clock],
) -> None:
    fetching, clock = limited
    first, second = fetching("a"), fetching("c")
    assert len(first()) + len(first()) == 2000  # more than it may, once
    with pytest.raises(BusyError, match=r"b at .*: it has had its 0.0015 MB a minute"):
        first()
    assert len(second()) == 1000
    clock.now = 30.0  # of 0.0005 MB too much half a minute gives back 0.00075
    assert len(first()) == 1000
    with pytest.raises(BusyError):
        first()


def test_a_peer_may_ask_so_often_a_minute_whatever_it_asks(
    limited: tuple[Callable[[str], Callable[[], bytes]], Clock], town: Town
) -> None:
    fetching, clock = limited
    fetch = fetching("a")
    bad = partial(fetch.func, fetch.args[0], "a-run", "experts.1")
    for _ in range(3):
        with pytest.raises(FederationError, match="there is no"):
            bad()
    with pytest.raises(BusyError, match="it has had its 3 calls a minute"):
        fetch()
    clock.now = 21.0
    assert len(fetch()) == 1000


def test_a_long_request_is_not_taken_off_the_wire(town: Town) -> None:
    with pytest.raises(FederationError, match="larger than max"):
        _channel(town).call(f"/{PEERS}/Fetch", b" " * 5000, 30)
    assert town.fetch("a") == b"x" * 1000


def test_who_answers_nothing_is_waited_for_until_the_deadline(town: Town) -> None:
    """Somebody takes the connection and says no word."""
    with socket.create_server(("localhost", 0)) as silent:
        peers = Peers(town.folder / "a", ("b",), seconds=0.5)
        shelf = SHELF.model_copy(update={"address": f"localhost:{silent.getsockname()[1]}"})
        with pytest.raises(UnreachableError, match="b at localhost"):
            peers.fetch(shelf, "a-run", "experts.0")
        peers.close()


def test_one_member_cannot_take_everybodys_turn(town: Town) -> None:
    """It has so many calls open and then no more; what others ask is done."""
    held, entered = threading.Event(), threading.Semaphore(0)

    def wait(name: str, request: bytes) -> bytes:
        if name == "a":
            entered.release()
            held.wait()
        return name.encode()

    server, port = serve("test", {"Wait": wait}, town.folder / SERVER, "localhost:0", ("a", "c"), workers=20)
    channels = {name: Channel(town.folder / name, f"localhost:{port}", SERVER) for name in ("a", "c")}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        calls = [pool.submit(channels["a"].call, "/test/Wait", b"", 60) for _ in range(AT_ONCE)]
        for _ in range(AT_ONCE):
            entered.acquire()
        with pytest.raises(BusyError, match=f"it has {AT_ONCE} calls open already"):
            channels["a"].call("/test/Wait", b"", 60)
        assert channels["c"].call("/test/Wait", b"", 60) == b"c"
        held.set()
        assert [call.result() for call in calls] == [b"a"] * AT_ONCE
    for channel in channels.values():
        channel.close()
    server.stop(0).wait()


def test_calls_that_a_killed_site_has_left_behind_keep_nobody_waiting(town: Town) -> None:
    """A site that is killed and started again, and again: each time a call that waits for work is left at the hub."""
    hub = Hub(town.folder / SERVER, "localhost:0", ("a",))
    channel = Channel(town.folder / "a", f"localhost:{hub.port}", SERVER)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(channel.call, f"/{SERVICE}/Next", b"", WAIT)
        while "a" not in hub.seen:
            assert not first.done()
            time.sleep(0.01)
        second = pool.submit(channel.call, f"/{SERVICE}/Next", b"", WAIT)
        with pytest.raises(FederationError, match="it has asked again"):
            first.result()
        hub.close()
        second.exception()
    channel.close()


FUZZ = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TEXT = st.sampled_from(["../../../b/own.key", "/etc/passwd", "..", "", "experts.0/../../..", "a\0b"]) | st.text()


@FUZZ
@given(raw=st.binary() | st.builds(lambda r, v, w: f'{{"run":"{r}","version":"{v}","what":"{w}"}}', TEXT, TEXT, TEXT))
def test_whatever_a_peer_asks_it_gets_nothing_but_what_is_in_the_spool(town: Town, raw: bytes | str) -> None:
    channel = _channel(town)
    request = raw.encode(errors="replace") if isinstance(raw, str) else raw
    with pytest.raises(FederationError):
        channel.call(f"/{PEERS}/Fetch", request, 5)
    assert town.fetch("a") == b"x" * 1000


_kept: dict[str, Channel] = {}


def _channel(town: Town) -> Channel:
    return _kept.setdefault(town.address, Channel(town.folder / "a", town.address, "b"))


@pytest.fixture
def federation(town: Town, tmp_path: Path) -> Iterator[tuple[Hub, list[Peers]]]:
    """A hub, and three sites that attend it, as threads."""
    names = ("a", "b", "c")
    hub, over = Hub(town.folder / SERVER, "localhost:0", names), threading.Event()
    fetchers, servers, threads = [], [], []
    for number, name in enumerate(names):
        others = [other for other in names if other != name]
        served, port = serve_spool(Spool(tmp_path / name / "spool"), town.folder / name, "localhost:0", others)
        peers = Peers(town.folder / name, others)
        site = Site(tmp_path / name, Holding.of(TASK, number), peers.fetch, f"localhost:{port}")
        work = (site, town.folder / name, f"localhost:{hub.port}", 1.0, lambda: not over.is_set())
        threads.append(threading.Thread(target=attend, args=work))
        threads[-1].start()
        fetchers.append(peers)
        servers.append(served)
    yield hub, fetchers
    over.set()
    hub.close()
    for thread, peers, served in zip(threads, fetchers, servers, strict=True):
        thread.join()
        peers.close()
        served.stop(0).wait()


def test_a_federation_over_sockets_equals_one_without(
    federation: tuple[Hub, list[Peers]], town: Town, tmp_path: Path
) -> None:
    hub, fetchers = federation
    chosen, folder = settings_for("fedmoe-da", TASK, rounds=2, options={"experts": (2,)}), tmp_path / "server"
    profiles = introductions(hub, hub.sites, folder / "state" / "sites.json", 60)
    over_sockets = Coordinator("a-run", chosen, hub.sites, profiles, hub, folder, Rules(deadline=60, minimum=3))
    over_sockets.run()

    without = Neighbourhood(tmp_path / "without", TASK).coordinator(chosen)
    without.run()
    assert_close(over_sockets.server, without.server)
    assert over_sockets.history.rows == without.history.rows
    peer_bytes = sum(row["peer_bytes"] for row in without.history.rows)
    assert peer_bytes > 0
    assert peer_bytes == sum(peers.bytes for peers in fetchers)

    with pytest.raises(FederationError, match="comes too late, or to nothing that was asked"):
        Channel(town.folder / "a", f"localhost:{hub.port}", SERVER).call(f"/{SERVICE}/Answer", b"0" * 40, 5)
    with pytest.raises(FederationError, match="'stranger' is not on the list"):
        Channel(town.folder / "stranger", f"localhost:{hub.port}", SERVER).call(f"/{SERVICE}/Next", b"", 5)


def test_an_answer_that_is_too_big_to_be_carried_is_a_refusal(
    federation: tuple[Hub, list[Peers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, _ = federation
    ask = Request(RequestHead(task=Task.PROFILE)).to_bytes()
    [(_, raw)] = hub.ask({0: ask}, 60)
    assert Answer.from_bytes(raw).head.profile is not None
    monkeypatch.setattr("fedexperts.federation.hub.SIZE_LIMIT", len(raw))
    [(_, raw)] = hub.ask({0: ask}, 60)
    assert re.match(
        r"its answer would have \d+ bytes, of at most \d+ that are carried", Answer.from_bytes(raw).head.refused
    )
