"""The numbers in a figure, as a table: what stands behind a picture in a paper."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from itertools import chain
from typing import Any

import numpy as np
import plotly.graph_objects as go

QUARTILES = {"lowerfence": "lowest", "q1": "first quartile", "median": "median", "q3": "third quartile",
             "upperfence": "highest", "mean": "mean"}  # fmt: skip
Row = dict[str, object]


def figure_csv(figure: go.Figure) -> str:
    """A row for each point or cell. A trace's `meta` names the columns of its `customdata`; bands are left."""
    rows = [row for trace in figure.data if trace.hoverinfo != "skip" for row in _rows(figure, trace)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(chain.from_iterable(rows))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(figure: go.Figure, trace: Any) -> Iterator[Row]:
    x, y = _axis(figure, trace.xaxis, "x"), _axis(figure, trace.yaxis, "y")
    names, x_name, y_name = {}, _title(x, "x"), _title(y, "y")
    if len(list(figure.select_xaxes())) > 1:
        names["panel"] = ", ".join(dict.fromkeys(filter(None, (_title(x, ""), _title(y, "")))))
        x_name = "x" if isinstance(trace, go.Bar) else x_name
    if isinstance(trace, go.Heatmap):
        yield from _cells(trace, names, _named(trace.y, y), _named(trace.x, x), y_name, x_name)
        return
    if trace.name:
        names["series"] = unescape(trace.name)
    columns: dict[str, Sequence[Any]] = {x_name: _named(trace.x, x), y_name: _named(trace.y, y)}
    if isinstance(trace, go.Box):
        del columns[y_name]
        columns |= {called: getattr(trace, key) for key, called in QUARTILES.items()}
    elif isinstance(trace, go.Violin):
        columns[x_name] = [trace.x0] * len(trace.y)
    columns |= _custom(trace)
    for values in zip(*columns.values(), strict=True):
        yield names | dict(zip(columns, map(_plain, values), strict=True))


def _cells(
    trace: go.Heatmap, names: Mapping[str, object], rows: Sequence[Any], columns: Sequence[Any], row: str, column: str
) -> Iterator[Row]:
    for name, values in zip(rows, np.asarray(trace.z), strict=True):
        for other, value in zip(columns, values, strict=True):
            if not np.isnan(value):
                yield {**names, row: _plain(name), column: _plain(other), "value": _plain(value)}


def _custom(trace: Any) -> dict[str, Sequence[Any]]:
    if not trace.meta:
        return {}
    values = np.asarray(trace.customdata, dtype=object)
    values = values.reshape(len(values), -1)
    return {name: values[:, place].tolist() for place, name in enumerate(trace.meta)}


def _axis(figure: go.Figure, name: str | None, letter: str) -> Any:
    return figure.layout[f"{letter}axis{(name or letter).removeprefix(letter)}"]


def _title(axis: Any, otherwise: str) -> str:
    return unescape(axis.title.text or "").replace("<br>", " ") or otherwise


def _named(values: Sequence[Any], axis: Any) -> Sequence[Any]:
    """Places on an axis by the names that stand there, where each has one."""
    ticks = dict(zip(_listed(axis.tickvals), _listed(axis.ticktext), strict=False))
    found = _listed(values)
    return [ticks[value] for value in found] if ticks and set(found) <= set(ticks) else found


def _listed(values: Any) -> list[Any]:
    return [] if values is None else np.asarray(values, dtype=object).tolist()


def _plain(value: Any) -> object:
    if isinstance(value, str):
        return unescape(value).replace("<br>", " ")
    return round(float(value), 6) if isinstance(value, float | np.floating) else value
