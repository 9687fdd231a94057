"""Files of the user's own: texts (.csv or .jsonl) or a table's numbers (.csv), with a `label` in every line."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedexperts.data.parts import Array, reading
from fedexperts.data.samples import class_order
from fedexperts.errors import DataError

FORMS = (".csv", ".jsonl")
COLUMNS = ("text", "label")


def read(path: Path) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """Texts, numbers of classes, and the classes' names: the labels as written, in order."""
    texts, labels = read_texts(path)
    names = sorted(set(labels), key=class_order)
    if len(names) < 2:
        raise DataError(f"{path} has {len(texts):,} texts of {len(names)} classes; at least two classes are needed")
    number = {name: i for i, name in enumerate(names)}
    return texts, np.array([number[label] for label in labels], np.int64), tuple(names)


def read_texts(path: Path, labelled: bool = True) -> tuple[list[str], list[str]]:
    """Texts and their labels; without `labelled` a file needs none, and none are read."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    needed = COLUMNS if labelled else COLUMNS[:1]
    rows = _from_csv if path.suffix.lower() == ".csv" else _from_json
    texts, labels = [], []
    with reading(path, f"a {path.suffix} file of texts"), path.open(newline="", encoding="utf-8-sig") as file:
        for line, row in rows(file, needed):
            if missing := [column for column in needed if row.get(column) in (None, "")]:
                raise DataError(
                    f"{path}, line {line}: no {' and no '.join(missing)}; each has a {' and a '.join(needed)}"
                )
            texts.append(str(row["text"]))
            if labelled:
                labels.append(str(row["label"]))
    return texts, labels


def has_texts(path: Path) -> bool:
    """Whether the file's lines are texts and not a table's numbers: its first line names a column `text`."""
    if path.suffix.lower() != ".csv":
        return True
    with reading(path, "a .csv file"), path.open(newline="", encoding="utf-8-sig") as file:
        return "text" in next(csv.reader(file), [])


def read_table(path: Path, labelled: bool = True) -> tuple[Array, list[str], tuple[str, ...]]:
    """A table's numbers (float32), its labels if they are asked for, and the names of its columns without `label`."""
    rows, labels = [], []
    with reading(path, "a .csv file of numbers"), path.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file, strict=True)
        columns = tuple(name for name in table.fieldnames or () if name != "label")
        if labelled and "label" not in (table.fieldnames or ()):
            raise DataError(f"{path}: its first line names no column label, and no text; a table needs its classes")
        for row in table:
            if None in row or None in row.values():
                raise DataError(f"{path}, line {table.line_num}: not as many values as the first line names")
            rows.append([_number(row[name], f"{path}, line {table.line_num}, column {name}") for name in columns])
            if labelled:
                labels.append(row["label"])
    return np.array(rows, np.float32).reshape(len(rows), len(columns)), labels, columns


def _number(value: str, where: str) -> float:
    try:
        return float(value)
    except ValueError:
        said = f"'{value}' is not a number" if value.strip() else "nothing is there"
        raise DataError(f"{where}: {said}; give numbers only, and fill in what is missing") from None


def _from_csv(file: TextIO, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    table = csv.DictReader(file, strict=True)
    if missing := [column for column in needed if column not in (table.fieldnames or ())]:
        raise DataError(f"{file.name}: its first line names no column {' and no '.join(missing)}")
    for row in table:
        yield table.line_num, row


def _from_json(file: TextIO, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(file, 1):
        if text.strip():
            row = json.loads(text)
            if not isinstance(row, dict):
                wanted = " and ".join(needed)
                raise DataError(f"{file.name}, line {line}: expected an object with {wanted}, found {text:.40}")
            yield line, row
