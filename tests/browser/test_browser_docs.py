"""The documentation's site as a reader has it: in a browser, from a file, on a phone and on a desk."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

Open = Callable[..., AbstractContextManager[Page]]
GROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}


@pytest.mark.parametrize(("size", "colours"), [("phone", "dark"), ("desktop", "light")])
def test_pages_fit_the_window_and_have_the_colours_of_our_pages(
    opened: Open, site: Path, size: str, colours: str
) -> None:
    for name in ("index", "methods", "results/fedmoe"):
        with opened((site / f"{name}.html").as_uri(), size, colours) as page:
            expect(page.locator("h1")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == GROUND[colours]


def test_the_search_finds_something_without_a_server(opened: Open, site: Path) -> None:
    with opened((site / "index.html").as_uri()) as page:
        page.get_by_label("Search", exact=True).first.click()
        page.keyboard.type("singular values")
        found = page.locator(".md-search-result__link").filter(has_text="FedEMoE").first
        expect(found).to_be_visible()
        found.click()
        expect(page.locator("article")).to_contain_text("singular values")
        assert not page.url.endswith("index.html")
