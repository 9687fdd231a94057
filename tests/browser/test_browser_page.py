"""The page as a reader has it: in a browser, from a file, at the sizes of a phone and of a desk, light and dark."""

import csv
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Page, expect

from fedexperts.measure import MEANING, Record
from fedexperts.report.chapters import everything
from fedexperts.report.pieces import slug
from fedexperts.report.values import figure_csv

Open = Callable[..., AbstractContextManager[Page]]
GROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}


def column(page: Page, table: str, number: int) -> list[str]:
    return [cell.strip() for cell in page.locator(f"#{table} tbody td:nth-child({number})").all_inner_texts()]


def ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize(("size", "colours"), [("phone", "dark"), ("desktop", "light")])
def test_every_figure_is_drawn_and_nothing_is_cut_off(
    opened: Open, page_file: Path, records: list[Record], size: str, colours: str
) -> None:
    with opened(page_file.as_uri(), size, colours) as page:
        names = [slug(section.heading) for section in everything(records)]
        assert len(set(names)) == len(names) > 20
        for name in [*names, "one-client-accuracy", "one-client-data"]:
            holder = page.locator(f"#drawing-{name}")
            holder.scroll_into_view_if_needed()
            expect(holder.locator(".main-svg").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert ground(page) == GROUND[colours]
        lettering = "getComputedStyle(document.querySelector('.js-plotly-plot .xtitle')).fill"
        text = "getComputedStyle(document.body).color"
        assert page.evaluate(lettering) == page.evaluate(text)
        page.get_by_label("Switch between light and dark").click()
        assert ground(page) == GROUND["light" if colours == "dark" else "dark"]
        page.get_by_role("link", name="What it cost").click()
        expect(page.get_by_role("heading", name="What it cost", exact=True)).to_be_in_viewport()


def test_tables_sort_and_say_so(opened: Open, page_file: Path) -> None:
    with opened(page_file.as_uri()) as page:
        for header, number, numeric in (("last", 2, True), ("method", 1, False)):
            cells = column(page, "comparison", number)
            values = sorted(map(float, cells), reverse=True) if numeric else sorted(cells, key=str.lower)
            button = page.locator("#comparison").get_by_role("button", name=header)
            for way, expected in (("first", values), ("second", values[::-1])):
                button.focus()
                page.keyboard.press("Enter")
                found = column(page, "comparison", number)
                assert ([*map(float, found)] if numeric else found) == expected, way
            sorts = page.locator("#comparison th[aria-sort]")
            assert sorts.count() == 1
            assert sorts.get_attribute("aria-sort") == ("ascending" if numeric else "descending")


@pytest.mark.parametrize("size", ["phone", "desktop"])
def test_one_client_can_be_picked(opened: Open, page_file: Path, records: list[Record], size: str) -> None:
    with opened(page_file.as_uri(), size) as page:
        shown = {record.title: record for record in records if record.settings.method != "fedmoe-da"}
        page.locator("#pick-client").select_option("2")
        page.locator("#one-client").scroll_into_view_if_needed()
        names = column(page, "client-figures", 1)
        assert [name.partition(" ")[0] for name in names] == list(shown)
        for number, kind in enumerate(MEANING, start=2):
            expected = [f"{100 * one.figures[kind].clients[2]:.2f}" for one in shown.values()]
            assert column(page, "client-figures", number) == expected
        counts = records[0].counts[2]
        said = f"{counts.sum()} samples of {(counts > 0).sum()} classes."
        expect(page.locator("#client-said")).to_have_text(said)
        page.get_by_label("Next client").click()
        expect(page.locator("#pick-client")).to_have_value("3")
        page.locator("#drawing-one-client-accuracy .main-svg").first.wait_for()
        drawn = page.evaluate(
            "document.getElementById('drawing-one-client-accuracy').data.map(one => Array.from(one.y))"
        )
        for line, record in zip(drawn, shown.values(), strict=True):
            assert line == pytest.approx(100 * record.curve.test[:, 3], abs=0.006)
        page.locator("#pick-task").select_option("1")  # another model for all is another task
        assert len(column(page, "client-figures", 1)) == 1


def test_figures_and_tables_are_saved(opened: Open, page_file: Path, records: list[Record]) -> None:
    section = next(one for one in everything(records) if one.heading == "Accuracy over the rounds")
    name = slug(section.heading)
    with opened(page_file.as_uri()) as page:

        def saved(selector: str) -> tuple[str, str]:
            with page.expect_download() as download:
                page.locator(selector).click()
            return download.value.suggested_filename, Path(download.value.path()).read_text(encoding="utf-8")

        assert saved(f"[data-save=csv][data-of={name}]") == (f"{name}.csv", figure_csv(section.figure))
        called, drawing = saved(f"[data-save=svg][data-of={name}]")
        assert called == f"{name}.svg"
        assert ElementTree.fromstring(drawing).tag == "{http://www.w3.org/2000/svg}svg"
        assert all(words in drawing for words in ("FedMoE", "Standalone", "mean test accuracy, %"))
        called, table = saved("[data-file='comparison.csv']")
        assert called == "comparison.csv"
        assert len(list(csv.DictReader(io.StringIO(table)))) == len(records)
        assert r"\toprule" in saved("[data-file='comparison.tex']")[1]
        page.evaluate("window.print = () => {}")  # it would wait for a person
        page.locator(f"[data-save=pdf][data-of={name}]").click()
        page.locator(".paper svg").first.wait_for(state="attached")
        sheet = page.pdf(prefer_css_page_size=True)
        assert sheet.startswith(b"%PDF-")
        assert sheet.count(b"/Type /Page\n") == 1  # one figure, nothing else
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        expect(page.locator("h1")).to_be_visible()
