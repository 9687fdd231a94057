"""Texts from a file of the user's own."""

from pathlib import Path

import pytest

from fedexperts.config import TaskSettings
from fedexperts.data import load
from fedexperts.errors import DataError

CSV = 'id,label,text\n1,good,"Well, well\nwell"\n2,bad,Märkte fallen\n3,good,fine\n'
JSON = '{"text": "Well", "label": 10}\n\n{"label": 2, "text": "not so well", "id": 7}\n{"text": "x", "label": 10}\n'


def test_a_csv_file_is_a_set(tmp_path: Path) -> None:
    (tmp_path / "Reviews.csv").write_text(CSV, encoding="utf-8-sig")  # as spreadsheets write it
    found = load("Reviews.csv", tmp_path)
    assert found.inputs.tolist() == ["Well, well\nwell", "Märkte fallen", "fine"]
    assert found.class_names == ("bad", "good")
    assert found.labels.tolist() == [1, 0, 1]
    assert (found.name, found.kind, found.note) == ("Reviews", "text", f"from {tmp_path / 'Reviews.csv'}")


def test_a_jsonl_file_is_a_set_and_numbers_are_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(JSON)
    found = load("a.jsonl", tmp_path)
    assert found.inputs.tolist() == ["Well", "not so well", "x"]
    assert found.class_names == ("2", "10")
    assert found.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,class\nx,1\n", "a.csv: its first line names no column label"),
        ("a.csv", "", "a.csv: its first line names no column text and no label"),
        ("a.csv", "text,label\nx,1\ny\n", "a.csv, line 3: no label; each has a text and a label"),
        ("a.csv", "text,label\nx,1\n,2\n", "a.csv, line 3: no text"),
        ("a.csv", "text,label\nx,1\ny,1\n", "a.csv has 2 texts of 1 classes; at least two classes are needed"),
        ("a.csv", 'text,label\n"x,1\n', "a.csv cannot be read as a .csv file of texts"),
        ("a.jsonl", '{"text": "x", "label": 1}\n["y", 2]\n', "a.jsonl, line 2: expected an object with text and label"),
        ("a.jsonl", '{"text": "x"}\n', "a.jsonl, line 1: no label"),
        ("a.jsonl", '{"text": "x", ', "a.jsonl cannot be read as a .jsonl file of texts"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as error:
        load(name, tmp_path)
    assert f"{tmp_path / message}" in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*none\.csv"):
        load("none.csv", tmp_path)


@pytest.mark.parametrize(
    ("values", "folder"),
    [
        ({"data": "a.csv"}, "."),
        ({"data": "sub/a.csv"}, "sub"),
        ({"data": "a.csv", "data_dir": "sub"}, "sub"),
        ({"data": "deep/a.csv", "data_dir": "sub"}, "sub/deep"),
    ],
)
def test_a_path_is_a_folder_and_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = TaskSettings.check(values)
    assert (settings.data, settings.data_dir) == ("a.csv", tmp_path / folder)
    assert TaskSettings.check(settings.model_dump()) == settings
