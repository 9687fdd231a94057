"""`fedexperts watch`: a run that really goes on, in a browser that follows it."""

import http.client
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from threading import Semaphore, Thread
from urllib.request import urlopen

import pytest
from playwright.sync_api import Page, expect

import fedexperts
from fedexperts.engine import Observer, Simulation
from fedexperts.report.live import Watched
from fedexperts.report.server import Server

Open = Callable[..., AbstractContextManager[Page]]


class Gate(Observer):
    """Lets a run go on round by round, when it is told to."""

    def __init__(self) -> None:
        self.rounds = Semaphore(0)

    def started(self, simulation: Simulation) -> None:
        assert self.rounds.acquire(timeout=60)

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        assert self.rounds.acquire(timeout=60)


class Going:
    """A run of five rounds in a thread, and a server that shows it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.gate = folder, Gate()
        self.server = Server(Watched(lambda: [path for path in (folder,) if path.exists()]), "127.0.0.1", 0)
        self._threads = [Thread(target=self._run), Thread(target=self.server.serve_forever)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        task = fedexperts.Task.of(data="digits", clients=3, samples_per_client=60)
        fedexperts.run("fedavg", task, out=self.folder, rounds=5, device="cpu", observers=[self.gate])

    def end(self) -> None:
        for _ in range(6):
            self.gate.rounds.release()
        self._threads[0].join()
        self.server.shutdown()
        self.server.server_close()
        self._threads[1].join()


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Going]:
    going = Going(tmp_path / "run")
    yield going
    going.end()


def test_the_page_follows_a_run_and_stays_where_the_reader_is(opened: Open, going: Going) -> None:
    with opened(going.server.url, "phone") as page:
        expect(page.locator("h1")).to_have_text("Waiting for a first round")
        going.gate.rounds.release()
        expect(page.locator("#progress")).to_contain_text("round 1 of 5")
        page.locator("#pick-client").select_option("1")
        page.locator("#comparison").get_by_role("button", name="last").click()
        page.locator("#figure-training-loss").scroll_into_view_if_needed()
        page.locator("#drawing-training-loss .main-svg").first.wait_for()
        before = page.locator("#figure-training-loss").bounding_box()
        for number in (2, 3):
            going.gate.rounds.release()
            expect(page.locator("#progress")).to_contain_text(f"round {number} of 5")
            expect(page.locator("#drawing-training-loss .points path")).to_have_count(number)
        assert page.locator("#figure-training-loss").bounding_box() == before
        assert page.evaluate("scrollY") > 0
        expect(page.locator("#pick-client")).to_have_value("1")
        expect(page.locator("#comparison th[aria-sort]")).to_have_text("last")
        for _ in range(3):
            going.gate.rounds.release()
        expect(page.locator("#progress")).to_contain_text("finished")
        expect(page.locator("#live")).to_have_text("live")


def test_only_this_page_for_this_machine(going: Going) -> None:
    def status(method: str, path: str, host: str) -> int:
        with closing(http.client.HTTPConnection(*going.server.server_address[:2])) as connection:
            connection.request(method, path, headers={"Host": host})
            return connection.getresponse().status

    port = going.server.server_address[1]
    assert going.server.server_address[0] == "127.0.0.1"
    assert status("GET", "/", f"localhost:{port}") == 200
    assert status("GET", "/", f"evil.example:{port}") == 403  # a name of theirs that points here
    assert status("GET", "/news?seen=", f"evil.example:{port}") == 403
    assert status("GET", "/../../etc/passwd", f"127.0.0.1:{port}") == 404
    assert status("GET", "/settings.toml", f"127.0.0.1:{port}") == 404
    assert status("POST", "/", f"127.0.0.1:{port}") == 501


def test_the_command_says_where_and_ends_quietly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedexperts.cli", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.readline() + process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert url is not None, said
        with urlopen(url.group()) as answer:
            assert "No run is here yet" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def test_nobody_else_sees_it_unless_that_is_said(cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, _, err = cli("watch", tmp_path, "--host", "0.0.0.0", "--port", 0)
    assert code == 2
    assert "if that is meant, add --expose" in err
