"""A recipe that is another one with changes."""

from pathlib import Path

import pytest

from fedexperts.errors import SettingsError
from fedexperts.recipes import Choice, Recipe, Reduction, plan, read

TABLE = """
title = "Table"
source = "Nobody 2024"
published_as = "last"
claims = ["Ours is best."]
methods = { standalone = {}, fedmoe = { gate_width = 8 } }
seeds = [3, 4]
settings = { data = "digits", clients = 3, rounds = 2 }
[[cases]]
name = "Two classes"
published = { fedmoe = 95 }
"""
FIGURE = """
title = "Figure"
source = "Nobody 2024"
base = "paper/table.toml"
[[cases]]
name = "Three classes"
settings = { classes_per_client = 3 }
"""


@pytest.fixture
def figure(tmp_path: Path) -> Path:
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper/table.toml").write_text(TABLE)
    (tmp_path / "figure.toml").write_text(FIGURE)
    return tmp_path / "figure.toml"


def changed(figure: Path, line: str) -> Recipe:
    figure.write_text(FIGURE.replace("[[cases]]", f"{line}\n[[cases]]", 1))
    return read(str(figure))


def test_what_is_not_said_is_the_bases_but_not_its_cases_and_claims(figure: Path) -> None:
    table, found = read(str(figure.parent / "paper/table.toml")), read(str(figure))
    assert (found.published_as, found.methods, found.seeds) == ("last", table.methods, (3, 4))
    assert found.settings == table.settings
    assert (found.name, found.title, found.claims) == ("figure", "Figure", ())
    assert [case.name for case in found.cases] == ["Three classes"]
    cells = plan(found, Path("out"), Choice(), Reduction())
    assert [(cell.method, cell.settings.seed) for cell in cells] == [
        ("standalone", 3), ("fedmoe", 3), ("standalone", 4), ("fedmoe", 4),
    ]  # fmt: skip
    assert {(cell.settings.rounds, cell.settings.classes_per_client) for cell in cells} == {(2, 3)}
    assert cells[1].settings.options["gate_width"] == [8]


def test_what_is_said_goes_before(figure: Path) -> None:
    assert changed(figure, 'published_as = "peak"').published_as == "peak"
    assert changed(figure, "seeds = [1]").seeds == (1,)
    assert changed(figure, 'methods = ["fedmoe"]').methods == {"fedmoe": {}}
    assert changed(figure, "settings.rounds = 5").settings == {"data": "digits", "clients": 3, "rounds": 5}


def test_a_base_may_have_a_base_and_a_recipe_of_the_package_be_one(figure: Path) -> None:
    nearer = figure.parent / "paper/nearer.toml"
    nearer.write_text(FIGURE.replace("paper/table", "table").replace("[[cases]]", "settings.rounds = 7\n[[cases]]", 1))
    figure.write_text(FIGURE.replace("table", "nearer"))
    assert read(str(figure)).settings == {"data": "digits", "clients": 3, "rounds": 7}
    figure.write_text(FIGURE.replace("paper/table.toml", "fedmoe/table3"))
    assert read(str(figure)).methods == read("fedmoe/table3").methods


@pytest.mark.parametrize(
    ("base", "table", "says"),
    [
        ('"paper/tabel.toml"', TABLE, "recipe figure.toml: there is no settings file paper/tabel.toml"),
        ('"fedmoe/tabel3"', TABLE, "recipe figure.toml: unknown recipe 'fedmoe/tabel3'; did you mean 'fedmoe/table3'"),
        ("3", TABLE, "setting 'base' cannot be 3"),
        ('"figure.toml"', TABLE, "recipe figure.toml: bases go in a circle: figure.toml → figure.toml"),
        (
            '"paper/table.toml"',
            'base = "../figure.toml"' + TABLE,
            "recipe figure.toml: recipe paper/table.toml: bases go in a circle: figure.toml → table.toml → figure.toml",
        ),
        ('"paper/table.toml"', TABLE.replace("seeds", "seedz"), "recipe figure.toml: recipe paper/table.toml: unknown"),
        ('"paper/table.toml"\nsettings = 3', TABLE, "recipe figure.toml: setting 'settings' cannot be 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_base_is_said(
    figure: Path, monkeypatch: pytest.MonkeyPatch, base: str, table: str, says: str
) -> None:
    monkeypatch.chdir(figure.parent)
    figure.write_text(FIGURE.replace('"paper/table.toml"', base))
    Path("paper/table.toml").write_text(table)
    with pytest.raises(SettingsError) as error:
        read("figure.toml")
    assert says in str(error.value)
