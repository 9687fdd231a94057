"""The numbers in a figure, as a table: what stands behind a picture in a paper."""

import csv
import io
from collections.abc import Iterator, Sequence
from html import unescape
from itertools import chain
from typing import Any

import numpy as np
import plotly.graph_objects as go

QUARTILES = {"lowerfence": "lowest", "q1": "first quartile", "median": "median", "q3": "third quartile",
             "upperfence": "highest", "mean": "mean"}  # fmt: skip
Row = dict[str, object]


AGAIN = "again"
"""The `meta` of a trace whose numbers stand in another one too."""


def figure_csv(figure: go.Figure) -> str:
    """A row for each point or cell, in columns that are called as the axes are; bands and the like are left out.

    A trace's `meta` names the columns of its `customdata`.
    """
    shown = [trace for trace in figure.data if trace.hoverinfo != "skip" and trace.meta != AGAIN]
    rows = [row for trace in shown for row in _rows(figure, trace)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(chain.from_iterable(rows))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(figure: go.Figure, trace: Any) -> Iterator[Row]:
    x, y = _axis(figure, trace.xaxis, "x"), _axis(figure, trace.yaxis, "y")
    series = {"series": unescape(trace.name)} if trace.name else {}
    across, down = _named(trace.x, x), _named(trace.y, y)
    x_name, y_name = _title(x, across, "x"), _title(y, down, "y")
    if isinstance(trace, go.Heatmap):
        value, z = unescape(trace.colorbar.title.text or "value"), np.asarray(trace.z)
        for row, column in np.argwhere(~np.isnan(z)).tolist():
            named = {y_name: down[row], x_name: across[column], value: z[row, column]}
            if trace.meta:
                named[trace.meta[0]] = trace.customdata[row][column]
            yield series | {name: _plain(one) for name, one in named.items()}
        return
    columns: dict[str, Sequence[Any]] = {x_name: across, y_name: down}
    if isinstance(trace, go.Box):
        del columns[y_name]
        columns |= {called: getattr(trace, key) for key, called in QUARTILES.items()}
    elif isinstance(trace, go.Violin):
        columns[x_name] = [trace.x0] * len(trace.y)
    columns |= _custom(trace)
    for values in zip(*columns.values(), strict=True):
        yield series | dict(zip(columns, map(_plain, values), strict=True))


def _custom(trace: Any) -> dict[str, Sequence[Any]]:
    if not trace.meta:
        return {}
    values = np.asarray(trace.customdata, dtype=object).reshape(-1, len(trace.meta))
    return {name: values[:, place].tolist() for place, name in enumerate(trace.meta)}


def _axis(figure: go.Figure, name: str | None, letter: str) -> Any:
    axis = figure.layout[f"{letter}axis{(name or letter).removeprefix(letter)}"]
    return _axis(figure, axis.matches, letter) if axis.matches and not axis.title.text else axis


def _title(axis: Any, values: Sequence[Any], otherwise: str) -> str:
    """What an axis is called; one that only has names along it needs no title."""
    title = unescape(axis.title.text or "").replace("<br>", " ")
    return title or ("name" if any(isinstance(value, str) for value in values) else otherwise)


def _named(values: Sequence[Any], axis: Any) -> Sequence[Any]:
    """Places on an axis by the names that stand there, where each has one."""
    ticks = dict(zip(_listed(axis.tickvals), _listed(axis.ticktext), strict=False))
    found = _listed(values)
    places = ticks and set(found) <= set(ticks) and not any(isinstance(value, str) for value in found)
    return [ticks[value] for value in found] if places else found


def _listed(values: Any) -> list[Any]:
    return [] if values is None else np.asarray(values, dtype=object).tolist()


def _plain(value: Any) -> object:
    if isinstance(value, str):
        return unescape(value).replace("<br>", " ")
    return round(float(value), 6) if isinstance(value, float | np.floating) else value
