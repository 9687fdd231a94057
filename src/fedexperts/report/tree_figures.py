"""Plotly figures of FedEMoE's shared expert: its tree over the rounds, its spectra, and who uses it."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from fedexperts.analyses import NORMAL, OVER, UNDER, Growth, Life, Spectrum, Use
from fedexperts.methods.evolution import Change, Rules
from fedexperts.report.drawing import GRID, LINE, canvas, cells, panels, text, transparent
from fedexperts.report.peer_figures import BORDER, SHARE_BAR, USED, class_groups
from fedexperts.report.runs import DASHES, PALETTE

LABEL_COLOURS = {UNDER: PALETTE[2], NORMAL: PALETTE[0], OVER: PALETTE[1]}
CELLS_IN_ROWS = 500  # more cells than this have no room for numbers
NAMED_ROWS = 60  # more names than these do not fit along the side


def tree(growth: Growth) -> go.Figure:
    """A row for each place in the tree, a bar for each sub-expert or mixture that was there."""
    figure, lives = canvas("after round", "place in the tree"), growth.lives()
    places = sorted({life.position for life in lives})
    figure.add_trace(
        go.Bar(
            orientation="h",
            y=[places.index(life.position) for life in lives],
            x=[life.end - life.begin for life in lives],
            base=[life.begin for life in lives],
            width=0.8,
            text=[_called(life) for life in lives],
            customdata=[[_what(life), life.begin, life.end - 1] for life in lives],
            meta=["what", "first round", "last round"],
            textposition="inside",
            insidetextanchor="start",
            textangle=0,
            marker={
                "color": [_shade(life) for life in lives],
                "line": {"width": [1 if life.leaf is None else 0 for life in lives], "color": LINE},
            },
            hovertemplate="%{customdata[0]}, after rounds %{customdata[1]} to %{customdata[2]}<br>%{text}"
            "<extra></extra>",
            showlegend=False,
        )
    )
    figure.update_yaxes(
        autorange="reversed",
        tickvals=list(range(len(places))),
        ticktext=[".".join(map(str, place)) for place in places],
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(range=[0, growth.rounds + 1])
    figure.update_layout(height=130 + 30 * len(places))
    return figure


def health(growth: Growth, rules: Rules) -> go.Figure:
    """What the changes depend on, a line for each sub-expert: its rank over its threshold, and its tail energy."""
    figure = panels(["round"] * 2, horizontal_spacing=0.1)
    for leaf in np.unique(growth.log[:, 1]).astype(int).tolist():
        own = growth.log[growth.log[:, 1] == leaf]
        lost = np.flatnonzero(np.diff(own[:, 0]) > 1) + 1  # its place was empty for a while
        number, _, rank, tail, threshold, *_ = np.insert(own, lost, np.nan, axis=0).T
        looks = {
            "name": f"sub-expert {leaf}",
            "legendgroup": str(leaf),
            "mode": "lines",
            "line": {"color": _colour(leaf), "dash": DASHES[leaf // len(PALETTE) % len(DASHES)], "width": 2},
            "customdata": np.stack([rank, threshold], axis=1),
        }
        said = f"sub-expert {leaf}, round %{{x}}: "
        seen = said + "rank %{customdata[0]:.3f}, threshold %{customdata[1]:.3f}<extra></extra>"
        figure.add_trace(go.Scatter(x=number, y=rank - threshold, hovertemplate=seen, **looks), row=1, col=1)
        seen = said + "tail energy %{y:.4f}<extra></extra>"
        figure.add_trace(go.Scatter(x=number, y=tail, hovertemplate=seen, showlegend=False, **looks), row=1, col=2)
    for panel, expanded in ((1, True), (2, False)):
        made = [change for change in growth.changes if change.expanded == expanded]
        figure.add_trace(_marks(made, "triangle-up" if expanded else "triangle-down"), row=1, col=panel)
    for panel, limit in ((1, 0), (2, rules.tail_limit)):
        figure.add_hline(y=limit, line={"color": LINE, "width": 1.5, "dash": "dash"}, col=panel)
    figure.update_yaxes(title={"text": "effective rank − threshold"}, zeroline=False, col=1)
    figure.update_yaxes(title={"text": "tail energy"}, col=2)
    return figure


def spectra(found: Sequence[Spectrum], rules: Rules) -> go.Figure:
    """Singular values against their rank, a panel for each matrix of a sub-expert, a line for each sub-expert."""
    titles = [f"components of matrix {number}" for number in range(1, len(found[0].values) + 1)]
    figure = panels(titles, horizontal_spacing=0.08, shared_yaxes=True)
    turns = dict.fromkeys(LABEL_COLOURS, 0)
    for one in found:
        dash = DASHES[turns[one.label] % len(DASHES)]
        turns[one.label] += 1
        for panel, values in enumerate(one.values, start=1):
            line = go.Scatter(
                name=f"{one.leaf}: {one.label}",
                legendgroup=str(one.leaf),
                showlegend=panel == 1,
                x=np.arange(1, len(values) + 1) / len(values),
                y=(values / values[0]).numpy(),
                mode="lines",
                line={"color": LABEL_COLOURS[one.label], "dash": dash, "width": 2},
                hovertemplate=f"sub-expert {one.leaf}, component %{{x:.0%}}: %{{y:.3f}}<extra></extra>",
            )
            figure.add_trace(line, row=1, col=panel)
    for panel in range(1, len(titles) + 1):
        figure.add_vrect(x0=rules.tail_share, x1=1, fillcolor=GRID, line_width=0, layer="below", col=panel)
    figure.update_xaxes(range=[0, 1], tickformat=".0%")
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title={"text": "singular value, of the largest"}, col=1)
    return figure


def use(found: Use, dominant: np.ndarray, class_names: Sequence[str]) -> go.Figure:
    """Clients, ordered by their most frequent class, × sub-experts, and first the shared expert as a whole."""
    order = np.argsort(dominant, kind="stable")
    values = np.column_stack([found.asked, found.used])[order]
    numbers = np.where(values > 0, np.char.mod("%.2f", values), "")
    figure = canvas("sub-expert", "clients by most frequent class")
    heat = cells(
        values,
        ["all", *map(str, found.leaves)],
        range(len(order)),
        numbers if values.size <= CELLS_IN_ROWS else None,
        zmax=1,
        colorscale=USED,
        customdata=np.repeat(order[:, None], values.shape[1], axis=1),
        meta=["client"],
        colorbar=SHARE_BAR,
        hovertemplate="client %{customdata}, sub-expert %{x}: %{z:.3f}<extra></extra>",
    )
    figure.add_trace(heat)
    starts, middles = class_groups(dominant[order])
    for start in starts:
        figure.add_hline(y=start - 0.5, line=BORDER)
    figure.add_vline(x=0.5, line=BORDER)
    figure.update_xaxes(type="category", showgrid=False, side="top")
    figure.update_yaxes(
        autorange="reversed",
        showgrid=False,
        zeroline=False,
        tickvals=middles,
        ticktext=[text(class_names[dominant[order[middle]]]) for middle in middles],
        showticklabels=len(middles) <= NAMED_ROWS,
    )
    figure.update_layout(height=160 + min(max(22 * len(order), 200), 900))
    return figure


def in_figures(change: Change) -> str:
    """What caused it: "rank 0.974 > 0.812"."""
    sign = ">" if change.figure > change.limit else "<"
    return f"{'rank' if change.expanded else 'tail energy'} {change.figure:.3g} {sign} {change.limit:.3g}"


def _what(life: Life) -> str:
    return "mixture" if life.leaf is None else f"sub-expert {life.leaf}"


def _called(life: Life) -> str:
    cause = "" if life.why is None else text(in_figures(life.why))
    return " ".join(filter(None, ["" if life.leaf is None else str(life.leaf), cause]))


def _shade(life: Life) -> str:
    """Sub-experts of one child of the root have one colour; mixtures are pale."""
    return transparent(_colour(life.position[0]), 0.12 if life.leaf is None else 0.45)


def _colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def _marks(made: Sequence[Change], symbol: str) -> go.Scatter:
    y = [change.figure - change.limit if change.expanded else change.figure for change in made]
    return go.Scatter(
        x=[change.round for change in made],
        y=y,
        mode="markers",
        marker={"symbol": symbol, "size": 11, "color": [_colour(change.leaf) for change in made]},
        customdata=[[change.leaf, text(in_figures(change))] for change in made],
        hovertemplate="round %{x}, sub-expert %{customdata[0]}: %{customdata[1]}<extra></extra>",
        showlegend=False,
    )
