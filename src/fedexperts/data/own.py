"""Texts of the user's own: a .csv or .jsonl file with a `text` and a `label` in every line."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedexperts.data.parts import reading
from fedexperts.errors import DataError

FORMS = (".csv", ".jsonl")
COLUMNS = ("text", "label")


def read(path: Path) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """Texts, numbers of classes, and the classes' names: the labels as written, in order."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    rows = _from_csv if path.suffix.lower() == ".csv" else _from_json
    texts, labels = [], []
    with reading(path, f"a {path.suffix} file of texts"), path.open(newline="", encoding="utf-8-sig") as file:
        for line, row in rows(file):
            if missing := [column for column in COLUMNS if row.get(column) in (None, "")]:
                raise DataError(f"{path}, line {line}: no {' and no '.join(missing)}; each has a text and a label")
            texts.append(str(row["text"]))
            labels.append(str(row["label"]))
    names = sorted(set(labels), key=_order)
    if len(names) < 2:
        raise DataError(f"{path} has {len(texts):,} texts of {len(names)} classes; at least two classes are needed")
    number = {name: i for i, name in enumerate(names)}
    return texts, np.array([number[label] for label in labels], np.int64), tuple(names)


def _from_csv(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    table = csv.DictReader(file, strict=True)
    if missing := [column for column in COLUMNS if column not in (table.fieldnames or ())]:
        raise DataError(f"{file.name}: its first line names no column {' and no '.join(missing)}")
    for row in table:
        yield table.line_num, row


def _from_json(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(file, 1):
        if text.strip():
            row = json.loads(text)
            if not isinstance(row, dict):
                raise DataError(f"{file.name}, line {line}: expected an object with text and label, found {text:.40}")
            yield line, row


def _order(label: str) -> tuple[bool, int, str]:
    """Numbers by their value, before words."""
    return (False, int(label), "") if label.isdecimal() else (True, 0, label)
