"""What an analysis has found, as a table of numbers in the folder of the run."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedexperts.errors import SavedStateError
from fedexperts.files import write_atomically
from fedexperts.measure import SUMMARY


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def read_table(
    folder: Path | None, name: str, kind: str | None, keys: Sequence[str]
) -> tuple[list[str], np.ndarray] | None:
    """The header and the numbers of a table whose first columns are `keys`; None if it was never made.

    `kind` is the analysis that makes it; None: the run itself does.
    """
    if folder is None or not (folder / name).exists():
        return None
    try:
        with open(folder / name, newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        table = np.array(rows, dtype=float).reshape(len(rows), len(header))
    except ValueError:
        header, table = [], np.empty((0, 0))
    if header[: len(keys)] != list(keys) or not table.size or not np.isfinite(table).all():
        again = f"fedexperts analyse {kind} {folder}" if kind else f"rm {folder / SUMMARY}; fedexperts resume {folder}"
        raise SavedStateError(
            f"{folder / name} is cut off or changed: it does not have the columns {', '.join(keys)} and numbers in "
            f"every row; make it again: {again}"
        )
    return header, table
