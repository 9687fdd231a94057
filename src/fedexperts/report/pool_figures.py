"""Plotly figures of a pool of modules and of those who mix it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedexperts.analyses import Mixture, Pool
from fedexperts.report.analysis_figures import difference_bars
from fedexperts.report.drawing import FEW_CLIENTS, LINE, canvas, cells, panels, text, transparent
from fedexperts.report.peer_figures import NUMBERS_IN_A_HALF
from fedexperts.report.runs import PALETTE, REFERENCE_COLOUR

CONFIDENT = [(0, transparent(PALETTE[0], 0.05)), (1, transparent(PALETTE[0], 0.75))]
REMOVED = [(0, transparent(PALETTE[1], 0.05)), (1, transparent(PALETTE[1], 0.75))]


def gains(found: Mixture, base: str) -> go.Figure:
    """A bar for each client: what the mixture gives it, in the colour of what it chooses."""
    return difference_bars(found.gains_everywhere, _choices(found, base))


def gains_by_overlap(found: Mixture, overlap: np.ndarray, base: str) -> go.Figure:
    """A point for each client: what the mixture gives it, against how much of its label mix others share."""
    figure = canvas("part of the label mix that a client shares with another, mean over the others", "gain, points")
    for name, colour, members in _choices(found, base):
        figure.add_trace(
            go.Scatter(
                name=name,
                x=overlap[members],
                y=found.gains_everywhere.points[members],
                customdata=np.flatnonzero(members),
                meta=["client"],
                mode="markers",
                marker={"size": 9, "color": colour, "line": {"width": 0}},
                hovertemplate="client %{customdata}: %{y:+.2f} at %{x:.2f}<extra></extra>",
            )
        )
    figure.update_xaxes(zeroline=False)
    figure.add_hline(y=0, line={"color": LINE, "width": 1.5})
    return figure


def _choices(found: Mixture, base: str) -> list[tuple[str, str, np.ndarray]]:
    return [
        ("uses the mixture", PALETTE[0], found.used),
        (f"stays with {text(base)}", REFERENCE_COLOUR, ~found.used),
    ]


def energy(pool: Pool) -> go.Figure:
    """Clients × others' modules: on the left the mean confidence, on the right how often it is removed."""
    figure = panels(["module", "module"], horizontal_spacing=0.14, subplot_titles=["confidence", "removed"])
    values = (np.where(pool.others, one, np.nan) for one in (pool.confidence, pool.removed))
    scales: tuple[dict[str, Any], ...] = ({"colorscale": CONFIDENT, "zmin": None}, {"colorscale": REMOVED, "zmax": 1})
    for panel, (one, scale) in enumerate(zip(values, scales, strict=True), start=1):
        names = [str(client) for client in range(len(one))]
        numbers = np.where(np.nan_to_num(one) == 0, "", np.char.mod("%.2f", np.nan_to_num(one)))
        edge = figure.get_subplot(1, panel).xaxis.domain[1] + 0.005
        heat = cells(
            one,
            names,
            names,
            numbers if one.size <= NUMBERS_IN_A_HALF else None,
            name=("confidence", "removed")[panel - 1],
            hoverongaps=False,
            hovertemplate="client %{y}, module of %{x}: %{z:.3f}<extra></extra>",
            colorbar={"thickness": 10, "outlinewidth": 0, "x": edge, "xanchor": "left"},
            **scale,
        )
        figure.add_trace(heat, row=1, col=panel)
    some = {"dtick": 1} if len(pool.samples) <= FEW_CLIENTS else {"nticks": 12}
    whole = {"type": "category", "showgrid": False, "zeroline": False, "mirror": True, "showline": True}
    figure.update_xaxes(whole | some)
    figure.update_yaxes(whole | some | {"autorange": "reversed"})
    figure.update_yaxes(title={"text": "client"}, col=1)
    figure.update_layout(height=520)
    return figure


def bounds(values: Mapping[str, np.ndarray]) -> go.Figure:
    """Accuracies of every client, the first of them a line across the others: what is promised."""
    promised, *_ = values.values()
    order = np.argsort(promised, kind="stable")
    few = len(order) <= FEW_CLIENTS
    figure = canvas("client" if few else "clients, in order", "accuracy, %")
    looks = (("line-ew", PALETTE[1]), ("circle", PALETTE[0]), ("diamond-open", REFERENCE_COLOUR), ("x", LINE))
    for (name, accuracy), (symbol, colour) in zip(values.items(), looks, strict=True):
        marker = {"symbol": symbol, "color": colour, "size": 9, "line": {"width": 0}}
        if symbol == "line-ew":
            marker |= {"size": 18 if few else 8, "line": {"width": 3, "color": colour}}
        elif symbol == "diamond-open":
            marker |= {"line": {"width": 2}}
        figure.add_trace(
            go.Scatter(
                name=name,
                x=np.arange(len(order)),
                y=100 * accuracy[order],
                customdata=order,
                meta=["client"],
                mode="markers",
                marker=marker,
                hovertemplate="client %{customdata}: %{y:.1f} %",
            )
        )
    figure.update_xaxes(showgrid=False, zeroline=False, showticklabels=few)
    if few:
        figure.update_xaxes(tickvals=np.arange(len(order)), ticktext=[str(client) for client in order])
    return figure
