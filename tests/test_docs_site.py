"""The documentation as a site: it is built without a warning, opens without a network, and knows every method."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from pages import ROOT

import fedexperts
from fedexperts import recipes
from fedexperts.config import Settings
from fedexperts.methods import registry


class Seen(HTMLParser):
    """What a page of the site loads and has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.paragraphs: list[str] = []
        self._in_paragraph = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loads.append(str(found["src"]))
        if tag == "link" and found.get("href") and found.get("rel") not in ("prev", "next"):
            self.loads.append(str(found["href"]))
        self.ids.add(found.get("id") or "")
        if tag == "p":
            self._in_paragraph = True
            self.paragraphs.append("")
        elif tag in ("code", "pre", "li"):
            self._in_paragraph = False

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._in_paragraph = False

    def handle_data(self, data: str) -> None:
        if self._in_paragraph:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def built(site: Path) -> dict[str, Seen]:
    return {str(path.relative_to(site)): Seen(path.read_text(encoding="utf-8")) for path in site.glob("**/*.html")}


def test_every_page_of_the_menu_is_there(built: dict[str, Seen]) -> None:
    menu = yaml.safe_load(re.search(r"^nav:.*", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.S | re.M)[0])
    listed = re.findall(r"[\w/-]+\.md", str(menu))
    assert {page.replace(".md", ".html") for page in listed} | {"404.html"} == set(built)


def test_nothing_is_loaded_from_elsewhere(site: Path, built: dict[str, Seen]) -> None:
    for page, seen in built.items():
        assert not [place for place in seen.loads if "//" in place], page
    for style in site.glob("**/*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_what_github_shows_as_a_list_or_a_table_is_one_here(built: dict[str, Seen]) -> None:
    for page, seen in built.items():
        assert not [text for text in seen.paragraphs if re.search(r"^(?:[-*] |\d+\. |\|)", text, re.MULTILINE)], page


def test_the_catalogue_and_the_reference_have_everything(site: Path, built: dict[str, Seen]) -> None:
    assert registry().keys() <= built["methods.html"].ids
    assert {name.replace("/", "") for name in recipes.shipped()} <= built["recipes.html"].ids
    assert {name.lower() for name in fedexperts.__all__} <= built["python.html"].ids
    said = (site / "settings.html").read_text(encoding="utf-8")
    assert [name for name in Settings.model_fields if f"<code>{name}</code>" not in said] == ["method", "options"]


def test_a_method_s_section_says_what_it_costs_and_where_it_was_measured(site: Path) -> None:
    text = (site / "methods.html").read_text(encoding="utf-8")
    section = re.search(r'<h2 id="fedmoe">.*?<h2 ', text, re.DOTALL)[0]
    for said in ("global_expert", "--gate-width", "times FedAvg's FLOPs", "results/fedmoe.html#", "recipes.html#"):
        assert said in section, said
    rows = re.findall(r"<td><code>\w+</code></td>\s*<td>private</td>((?:\s*<td[^>]*>[^<]*</td>)+)", text)
    assert len(rows) > 40
    assert all(set(re.findall(r">([^<\n]+)<", row)) == {"–"} for row in rows), "a private part in a message?"
    assert "nothing travels" in re.search(r'<h2 id="standalone">.*', text, re.DOTALL)[0]
