"""Plotly figures of experts and of those who share them."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import plotly.graph_objects as go

from fedexperts.analyses import Fetched
from fedexperts.report.drawing import FEW_CLIENTS, LINE, canvas, cells, heat_map, panels, text, transparent
from fedexperts.report.runs import PALETTE, REFERENCE_COLOUR
from fedexperts.report.values import AGAIN

# Growing with the root: what an expert has of itself is much more than what it has of each other.
PARTS = [(x, transparent(PALETTE[0], 0.75 * x**0.5)) for x in np.linspace(0, 1, 11).tolist()]
USED = [(0, transparent(PALETTE[0], 0.08)), (1, transparent(PALETTE[0], 0.75))]  # never is not: nobody asked
BORDER = {"color": REFERENCE_COLOUR, "width": 1.5}
SHARE_BAR = {"thickness": 10, "outlinewidth": 0}
NUMBERS_IN_A_HALF = 150  # cells of a matrix in half the page's width that have room for numbers
NAMED_GROUPS = 40  # more names than these do not fit along a side or around a circle
NAMED_CLIENTS = 100
ALIKE, OTHERS = "clients with the same most frequent class", "other clients"
WIDEST = 9


def mixture(
    shares: np.ndarray, names: Sequence[str], dominant: np.ndarray, class_names: Sequence[str], says: str
) -> go.Figure:
    """How much each has of each, on the left as numbered, on the right ordered by most frequent class; it `says` so."""
    figure = panels(["by number", "by most frequent class"], horizontal_spacing=0.16)  # names between them
    by_class = np.argsort(dominant, kind="stable")
    numbers = np.where(np.nan_to_num(shares) >= 0.005, np.char.mod("%.2f", np.nan_to_num(shares)), "")
    for panel, order in enumerate((np.arange(len(names)), by_class), start=1):
        heat = cells(
            shares[np.ix_(order, order)],
            [names[one] for one in order],
            [names[one] for one in order],
            numbers[np.ix_(order, order)] if shares.size <= NUMBERS_IN_A_HALF else None,
            meta=None if panel == 1 else AGAIN,
            zmax=float(np.nanmax(shares)),
            colorscale=PARTS,
            showscale=panel == 2,
            colorbar=SHARE_BAR,
            hoverongaps=False,
            hovertemplate=f"%{{y}} {says} %{{x}}: %{{z:.3f}}<extra></extra>",
        )
        figure.add_trace(heat, row=1, col=panel)
    ordered = dominant[by_class]
    starts, middles = class_groups(ordered)
    for start in starts - 0.5:
        figure.add_hline(y=start, line=BORDER, col=2)
        figure.add_vline(x=start, line=BORDER, col=2)
    ticks = {
        "tickvals": [names[by_class[middle]] for middle in middles],
        "ticktext": [text(class_names[ordered[middle]]) for middle in middles],
        "showticklabels": len(middles) <= NAMED_GROUPS,
    }
    whole = {"type": "category", "showgrid": False, "zeroline": False, "mirror": True, "showline": True}
    figure.update_xaxes(whole)
    figure.update_yaxes(whole | {"autorange": "reversed"})
    some = {"dtick": 1} if len(names) <= FEW_CLIENTS else {"nticks": 12}
    figure.update_xaxes(some, col=1)
    figure.update_yaxes(some, col=1)
    figure.update_xaxes(ticks, col=2)
    figure.update_yaxes(ticks, col=2)
    figure.update_layout(height=540)
    return figure


def class_groups(ordered: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Of clients ordered by class: where a new class begins, and the middles of all classes."""
    starts = np.flatnonzero(np.diff(ordered)) + 1
    ends = zip([0, *starts], [*starts, len(ordered)], strict=True)
    return starts, [(start + end - 1) // 2 for start, end in ends]


def chosen_by_class(shares: np.ndarray, rows: Sequence[str], class_names: Sequence[str]) -> go.Figure:
    """Experts × classes: for which part of a class's samples an expert is chosen."""
    figure = heat_map(
        shares,
        class_names,
        np.where(np.isnan(shares), "", np.char.mod("%.2f", np.nan_to_num(shares))),
        ("class", ""),
        zmax=1,
        colorscale=USED,
        hoverongaps=False,
        hovertemplate="%{customdata}, class %{x}: %{z:.3f}<extra></extra>",
        customdata=[[text(row)] * len(class_names) for row in rows],
        colorbar=SHARE_BAR,
    )
    figure.update_yaxes(tickvals=np.arange(len(rows)), ticktext=[text(row) for row in rows])
    return figure


def talk(fetched: Fetched, dominant: np.ndarray, class_names: Sequence[str], edges: int) -> go.Figure:
    """Clients on a circle, those with one most frequent class beside each other; a line's width is its fetches."""
    around = np.argsort(dominant, kind="stable")
    angle = np.empty(len(around))
    angle[around] = np.pi / 2 - 2 * np.pi * np.arange(len(around)) / len(around)
    x, y = np.cos(angle), np.sin(angle)
    figure = canvas("", "")
    pairs = fetched.pairs()[:edges]
    looks = {ALIKE: transparent(PALETTE[0], 0.75), OTHERS: "rgba(128,128,128,0.4)"}
    for name, colour in looks.items():  # what a line of no length says in the legend
        figure.add_trace(_line([None], [None], colour, 4, name=name, legendgroup=name, showlegend=True))
    for one, other, times in reversed(pairs):  # the strongest on top
        name = ALIKE if dominant[one] == dominant[other] else OTHERS
        width = max(0.5, WIDEST * times / pairs[0][2])
        figure.add_trace(_line(x[[one, other]], y[[one, other]], looks[name], width, legendgroup=name))
    ends = np.array([(one, other) for one, other, _ in pairs])
    figure.add_trace(
        go.Scatter(  # a line itself has no place where a pointer finds it
            x=x[ends].mean(axis=1),
            y=y[ends].mean(axis=1),
            mode="markers",
            marker={"opacity": 0, "size": 12},
            customdata=[(a, b, fetched.counts[a, b], fetched.counts[b, a]) for a, b in ends.tolist()],
            meta=["client", "other", "client from other", "other from client"],
            hovertemplate="%{customdata[0]} from %{customdata[1]}: %{customdata[2]}<br>"
            "%{customdata[1]} from %{customdata[0]}: %{customdata[3]}<extra></extra>",
            showlegend=False,
        )
    )
    figure.add_trace(_clients(x, y, fetched, [text(class_names[one]) for one in dominant]))
    if len(around) <= NAMED_CLIENTS:
        size = 12 if len(around) <= FEW_CLIENTS else 9
        numbers = {"mode": "text", "text": np.arange(len(around)), "textfont": {"size": size}}
        figure.add_trace(go.Scatter(x=1.08 * x, y=1.08 * y, hoverinfo="skip", showlegend=False, **numbers))
    step = 2 * np.pi / len(around)
    for one_class, group in groupby(around, key=lambda client: int(dominant[client])):
        members = angle[list(group)]
        arc = np.linspace(members[0] + 0.35 * step, members[-1] - 0.35 * step, 30)
        figure.add_trace(_line(1.16 * np.cos(arc), 1.16 * np.sin(arc), LINE, 3))
        if len(set(dominant.tolist())) <= NAMED_GROUPS:
            middle, name = arc.mean(), text(class_names[one_class])
            label = {"x": 1.23 * np.cos(middle), "y": 1.23 * np.sin(middle), "text": name, "showarrow": False}
            side = "center" if abs(np.cos(middle)) < 0.3 else "left" if np.cos(middle) > 0 else "right"
            figure.add_annotation(label | {"xanchor": side})
    figure.update_xaxes(visible=False, range=[-1.6, 1.6])
    figure.update_yaxes(visible=False, range=[-1.35, 1.35], scaleanchor="x")
    figure.update_layout(height=620, meta={"least": 560})
    return figure


def _line(x: object, y: object, colour: str, width: float, **values: object) -> go.Scatter:
    line = {"color": colour, "width": width}
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", **({"showlegend": False} | values))


def _clients(x: np.ndarray, y: np.ndarray, fetched: Fetched, classes: Sequence[str]) -> go.Scatter:
    given, got = fetched.counts.sum(axis=0), fetched.counts.sum(axis=1)
    return go.Scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"size": 12 if len(x) <= FEW_CLIENTS else 8, "color": REFERENCE_COLOUR, "line": {"width": 0}},
        customdata=list(zip(range(len(x)), classes, got, given, strict=True)),
        hovertemplate="client %{customdata[0]}, most of class %{customdata[1]}<br>fetched %{customdata[2]}, "
        "gave %{customdata[3]}<extra></extra>",
        showlegend=False,
    )
