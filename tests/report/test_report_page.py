"""The page: complete, alone in the world, and safe to open."""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedexperts.measure import MEANING
from fedexperts.report.page import write_label_page, write_page

HOSTILE = '<script>alert("boo")</script>'


class Page(HTMLParser):
    """What a browser would make of a page: its tags, scripts and text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += data


@pytest.fixture
def page(three, tmp_path) -> Page:
    return Page(write_page(three, tmp_path / "deep" / "down" / "page.html"))


def test_plotly_is_inside_once(page):
    assert page.source.count("* plotly.js v") == 1
    assert [tag for tag, _ in page.tags].count("script") == 3  # plotly, what is drawn, and what draws it


def test_nothing_is_loaded_from_anywhere(page):
    assert not [attributes for _, attributes in page.tags if attributes.keys() & {"src", "srcset", "data"}]
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in page.tags)
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "embed", "base")]
    policies = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert [policy.split(";")[0] for policy in policies] == ["default-src 'none'"]
    assert "http" not in policies[0]


def test_page_says_what_was_run_and_who_won(page, three):
    for record in three:
        assert record.title in page.text
        for kind in MEANING:
            assert f"{100 * record.figures[kind].mean:.2f}" in page.text
        assert f"fedexperts run {record.settings.method} --config settings.toml" in page.text
        assert record.settings.to_toml() in page.text
    assert "FedMoE reaches" in page.text
    assert "pathological, 2 classes per client, equal counts" in page.text
    assert "fedavg needs one model for all clients: all run cnn5" in page.text
    assert "cpu (x86_64)" in page.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"partition": "homogeneous", "samples_per_client": 50}, "homogeneous, 50 samples each"),
        ({"partition": "dirichlet", "alpha": 0.3}, "Dirichlet α = 0.3"),
        ({"partition": "dirichlet-shared"}, "Dirichlet α = 0.1, 20 % of each class shared evenly"),
        ({"balanced": False}, "pathological, 2 classes per client, Dirichlet α = 0.1 counts"),
    ],
)
def test_partition_in_words(make_record, tmp_path, settings, words):
    page = Page(write_page([make_record(rounds=1, **settings)], tmp_path))
    assert words in page.text


def test_where_runs_differ_all_values_are_named(make_record, tmp_path):
    page = Page(write_page([make_record(seed=1, rounds=2), make_record(seed=2, rounds=2)], tmp_path))
    assert "1 / 2" in page.text
    assert page.text.count("Who has which labels") == 2


def test_silent_runs_have_no_figure_of_traffic(make_record, tmp_path):
    assert "Accuracy for traffic" not in Page(write_page([make_record("standalone", rounds=2)], tmp_path)).text


def test_hostile_names_are_text(make_record, tmp_path):
    record = make_record(
        title=HOSTILE,
        notes=[HOSTILE],
        class_names=[HOSTILE] * 10,
        environment={HOSTILE: HOSTILE},
        data=HOSTILE,
        options={"x": HOSTILE},
    )
    page = Page(write_page([record], tmp_path))
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 3
    assert not [script for script in page.scripts if script.startswith("alert")]
    assert f"{HOSTILE} on {HOSTILE}" in page.text  # shown as it is written


def test_folder_file_and_parents(three, tmp_path):
    assert write_page(three, tmp_path) == tmp_path / "report.html"
    assert write_page(three, tmp_path / "new" / "page.htm") == tmp_path / "new" / "page.htm"
    (tmp_path / "report.html").write_text("old")
    write_page(three, tmp_path / "report.html")
    assert "FedMoE" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "report.html"]


def test_the_same_runs_give_the_same_page(three, tmp_path):
    pages = [write_page(three, tmp_path / name).read_bytes() for name in ("a.html", "b.html")]
    assert pages[0] == pages[1]


def test_label_page(tmp_path):
    counts = np.array([[5, 0, 7], [0, 9, 0]])
    page = Page(write_label_page(counts, ["cat", "dog", HOSTILE], "two <clients>", tmp_path))
    assert (tmp_path / "labels.html").exists()
    assert "two <clients>" in page.text
    assert "9 to 12" in page.text
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 3
    assert page.source.count("* plotly.js v") == 1
