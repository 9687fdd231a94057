"""What all figures have in common; they have no ground of their own: the page gives them its light or dark."""

from collections.abc import Sequence
from html import escape, unescape
from math import ceil
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedexperts.report.runs import Run

GRID = "rgba(128,128,128,0.25)"
LINE = "rgba(128,128,128,0.7)"
FEW_CLIENTS = 30  # up to here each client has its own place in a figure
PANEL, CELL = 340, 32  # pixels that one of several needs: on a phone such a figure is moved sideways
LEGEND_LINE = 100  # letters beside each other
CELLS_WITH_NUMBERS = 400  # more cells than this cannot be read as text


def canvas(x: str, y: str, hovermode: str = "closest") -> go.Figure:
    """An empty figure with one pair of axes."""
    figure = _styled(go.Figure(), hovermode)
    figure.update_xaxes(title={"text": x})
    figure.update_yaxes(title={"text": y})
    return figure


def panels(x: Sequence[str], **values: Any) -> go.Figure:
    """An empty figure with several pairs of axes side by side."""
    figure = _styled(make_subplots(1, len(x), **values), "closest")
    figure.update_layout(meta={"least": PANEL * len(x)})
    for number, title in enumerate(x, start=1):
        figure.update_xaxes(title={"text": title}, col=number)
    return figure


def _styled(figure: go.Figure, hovermode: str) -> go.Figure:
    figure.update_layout(
        {
            "template": "none",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "height": 420,
            "margin": {"l": 10, "r": 10, "t": 30, "b": 10},
            "font": {"family": "system-ui, sans-serif", "size": 13},
            "hovermode": hovermode,
            "showlegend": True,
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": LINE, "activecolor": LINE},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        }
    )
    axis = {"gridcolor": GRID, "zerolinecolor": GRID, "linecolor": LINE, "automargin": True, "showspikes": False}
    figure.update_xaxes(axis)
    figure.update_yaxes(axis)
    return figure


def least_width(figure: go.Figure) -> int:
    """Pixels that it needs to be read, if it says so."""
    least: int = (figure.layout.meta or {}).get("least", 0)
    return least


def for_paper(figure: go.Figure) -> dict[str, Any]:
    """What its layout has otherwise in a file for a paper."""
    return {
        "width": max(720, least_width(figure)),
        "height": figure.layout.height,
        "font": {"family": "Helvetica, Arial, sans-serif", "size": 13, "color": "#000000"},
        "paper_bgcolor": "#ffffff",
    }


def text(name: object) -> str:
    """A name as plotly may show it: it reads tags and links in names."""
    return escape(str(name), quote=False)


def folded(name: str, width: int = 30) -> str:
    """A name for a legend or the side of a figure: long ones in several lines."""
    return "<br>".join(map(text, wrap(name, width))) or " "


def name_ticks(names: Sequence[str], most: int = 40, letters: int = 18) -> dict[str, list[str]]:
    """Marks on an axis of names: some of many, and of long ones the beginning and the end."""
    some = list(names[:: ceil(len(names) / most)])
    plain = [unescape(name) for name in some]
    half = letters // 2
    said = [name if len(name) <= letters else f"{name[:half]}…{name[half + 1 - letters :]}" for name in plain]
    return {"tickvals": some, "ticktext": [text(name) for name in said]}


def trace(run: Run, **values: Any) -> go.Scatter:
    """A trace in the run's colours."""
    marker = {"color": run.colour} | values.pop("marker", {})
    line = {"color": run.colour, "dash": run.dash, "width": 2}
    return go.Scatter(name=folded(run.name, 40), legendgroup=text(run.name), line=line, marker=marker, **values)


def with_room(figure: go.Figure) -> go.Figure:
    """Higher by what its legend takes if it has many lines."""
    names = [one.name or "" for one in figure.data if one.showlegend is not False]
    rows = ceil(sum(len(name) + 8 for name in names) / LEGEND_LINE)
    return figure.update_layout(height=figure.layout.height + 20 * max(rows - 2, 0))


def band(run: Run, x: np.ndarray, mean: np.ndarray, std: np.ndarray, strength: float) -> go.Scatter:
    """± one standard deviation around a mean accuracy, both as fractions, cut where no accuracy can be."""
    return trace(
        run,
        x=np.concatenate([x, x[::-1]]),
        y=100 * np.concatenate([np.minimum(mean + std, 1), np.maximum(mean - std, 0)[::-1]]),
        mode="none",
        fill="toself",
        fillcolor=transparent(run.colour, strength),
        showlegend=False,
        hoverinfo="skip",
    )


def heat_map(
    z: np.ndarray, columns: Sequence[str], numbers: np.ndarray, axes: tuple[str, str], **heat: Any
) -> go.Figure:
    """Clients × columns as cells, with their numbers where there is room for them."""
    rows = len(z)
    readable = z.size <= CELLS_WITH_NUMBERS
    figure = canvas(*axes)
    figure.add_trace(cells(z, columns, range(rows), numbers if readable else None, **heat))
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False, **whole_ticks(rows))
    figure.update_layout(height=160 + min(max(24 * rows, 200), 900))
    if readable:
        figure.update_layout(meta={"least": 130 + CELL * len(columns)})
    return figure


def cells(
    z: np.ndarray, columns: Sequence[str], rows: Sequence[object], numbers: np.ndarray | None, **heat: Any
) -> go.Heatmap:
    """A table of colours, from 0 on if nothing else is said, with numbers in it if there are any."""
    return go.Heatmap(
        z=z,
        x=[text(name) for name in columns],
        y=list(rows),
        xgap=1 if len(columns) <= 50 else 0,
        ygap=1 if len(rows) <= 50 else 0,
        text=numbers,
        texttemplate=None if numbers is None else "%{text}",
        **({"zmin": 0} | heat),
    )


def transparent(colour: str, opacity: float) -> str:
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red},{green},{blue},{opacity:.3f})"


def whole_ticks(count: int) -> dict[str, int]:
    """Numbers of clients are whole: a tick for each of a few, plotly's choice for many."""
    return {"dtick": 1} if count <= 12 else {}
