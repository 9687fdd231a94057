"""A real browser without a window, and real runs whose page it opens."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import fedexperts
from fedexperts.cli_page import take_pictures
from fedexperts.measure import Record
from fedexperts.report.page import write_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZES = {"phone": {"width": 390, "height": 800}, "desktop": {"width": 1280, "height": 900}}
QUICK = {"rounds": 3, "batch_size": 32, "device": "cpu"}
Open = Callable[..., AbstractContextManager[Page]]
expect.set_options(timeout=30_000)  # a machine may be busy


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, as the system has it; where it must be there (in CI), its absence is a failure."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        assert "FEDEXPERTS_BROWSER" not in os.environ, "there is no Chromium: make browser"
        pytest.skip("there is no Chromium: make browser")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def opened(browser: Browser) -> Open:
    """Opens an address in a window of a size, light or dark; anything on its console is a failure."""

    @contextmanager
    def open_page(address: str, size: str = "desktop", colours: str = "light") -> Iterator[Page]:
        context = browser.new_context(viewport=SIZES[size], color_scheme=colours, has_touch=size == "phone")
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfailed", lambda request: said.append(f"{request.url}: {request.failure}"))
        page.goto(address)
        yield page
        context.close()
        assert said == []

    return open_page


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """FedMoE, FedEMoE and Standalone on one task, and FedMoE-DA: gates, a tree, spectra, a matrix, t-SNE."""
    folder = tmp_path_factory.mktemp("runs")
    task = fedexperts.Task.of(data="digits", clients=4, samples_per_client=60)
    fedexperts.run("fedmoe", task, out=folder / "fedmoe", gate_width=4, **QUICK)
    fedexperts.run("fedemoe", task, out=folder / "emoe", width=12, hidden=6, scale_every=1, **QUICK)
    fedexperts.run("standalone", task, out=folder / "standalone", **QUICK)
    peers = fedexperts.Task.of(data="digits", clients=4, samples_per_client=60, model="cnn-da")
    fedexperts.run("fedmoe-da", peers, out=folder / "da", experts=3, asked=2, **QUICK)
    found = [Record.load(folder / name) for name in ("fedmoe", "emoe", "standalone", "da")]
    take_pictures(found)
    return found


@pytest.fixture(scope="session")
def page_file(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(records, tmp_path_factory.mktemp("page") / "page.html")
