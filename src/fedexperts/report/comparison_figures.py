"""Plotly figures that compare runs at a glance: how good, for whom, and at what price."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedexperts.methods import Channel
from fedexperts.report.drawing import CELL, FEW_CLIENTS, canvas, cells, folded, name_ticks, panels, transparent
from fedexperts.report.runs import PALETTE, REFERENCE_COLOUR, Run, ranked
from fedexperts.report.table import PREFIXES, prefix_for, short

CELLS_WITH_NUMBERS = 300  # in the width of the page
CHANNELS = {
    Channel.UP: ("to the server", ""),
    Channel.DOWN: ("from the server", "/"),
    Channel.PEER: ("between clients", "x"),
}
# Last and peak are open marks on both sides of the selected one, which is full; the worst clients are a cross.
MARKS: dict[str, tuple[str, Callable[[Run], float]]] = {
    "worst 10 % of clients": ("x-thin", lambda run: run.selected.worst_tenth),
    "last": ("circle-open", lambda run: run.record.figures["last"].mean),
    "peak": ("triangle-up-open", lambda run: run.record.figures["peak"].mean),
    "selected": ("diamond", lambda run: run.selected.mean),
}


def standing(runs: Sequence[Run]) -> go.Figure:
    """A row for each run, best first: its three figures, its spread over the clients and its worst ones."""
    runs = ranked(runs)
    names, colours = [folded(run.name) for run in runs], [run.colour for run in runs]
    figure = canvas("test accuracy, %", "")
    for run, name in zip(runs, names, strict=True):
        ends = [max(run.selected.mean - run.selected.std, 0), min(run.selected.mean + run.selected.std, 1)]
        line = {"color": transparent(run.colour, 0.35), "width": 9}
        bar = {"x": [100 * end for end in ends], "y": [name] * 2, "mode": "lines", "line": line, "hoverinfo": "skip"}
        figure.add_trace(go.Scatter(**bar, showlegend=False))
    spread = {"color": transparent(REFERENCE_COLOUR, 0.35), "width": 9}
    figure.add_trace(
        go.Scatter(x=[None], y=[names[0]], mode="lines", line=spread, name="± std over clients", hoverinfo="skip")
    )
    for said, (symbol, value) in MARKS.items():
        marker = {"symbol": symbol, "size": 12, "color": colours, "line": {"width": 2, "color": colours}}
        points = {"x": [100 * value(run) for run in runs], "y": names, "mode": "markers", "marker": marker}
        hover = f"%{{y}}, {said}: %{{x:.2f}} %<extra></extra>"
        figure.add_trace(go.Scatter(name=said, **points, hovertemplate=hover, showlegend=False))
        marker = marker | {"color": REFERENCE_COLOUR, "line": {"width": 2, "color": REFERENCE_COLOUR}}
        key = {"x": [None], "y": [names[0]], "mode": "markers", "marker": marker}  # a mark is of no run in the legend
        figure.add_trace(go.Scatter(name=said, **key, hoverinfo="skip"))
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_layout(height=120 + 38 * len(runs))
    return figure


def gain_map(runs: Sequence[Run], clients: Sequence[str]) -> go.Figure:
    """Runs × clients: what each client gains over Standalone, in points; blue is a gain, orange a loss."""
    shown = [run for run in ranked(runs) if run.gains]
    gains = np.array([run.gains for run in shown])
    end = max(float(np.abs(gains).max()), 1.0)
    steps = (0, 0.01, 0.03, 0.1, 0.25, 0.5, 1)  # by the root: small gains are seen beside large losses
    scale = [(0.5 - x / 2, transparent(PALETTE[1], 0.85 * x**0.5)) for x in reversed(steps)]
    scale += [(0.5 + x / 2, transparent(PALETTE[0], 0.85 * x**0.5)) for x in steps]
    readable = len(clients) <= FEW_CLIENTS // 2 and gains.size <= CELLS_WITH_NUMBERS
    numbers = np.where(np.abs(gains) < 0.05, "0", np.char.mod("%+.1f", gains))
    figure = canvas("client", "")
    figure.add_trace(
        cells(
            gains,
            clients,
            [folded(run.name) for run in shown],
            numbers if readable else None,
            zmin=-end,
            zmax=end,
            colorscale=scale,
            hovertemplate="client %{x}, %{y}: %{z:+.2f} points<extra></extra>",
            colorbar={"title": {"text": "points"}, "thickness": 10, "outlinewidth": 0},
        )
    )
    figure.update_xaxes(type="category", showgrid=False, **name_ticks(clients, 20))
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_layout(height=150 + 40 * max(len(shown), 2), meta={"least": 140 + CELL * min(len(clients), 20)})
    return figure


def spent_bars(runs: Sequence[Run]) -> go.Figure:
    """What whole runs cost, a bar for each: bytes by channel, FLOPs, and time where it is known."""
    names, timed = [folded(run.name) for run in runs], any(run.record.seconds for run in runs)
    sent = {channel: np.array([run.record.totals[f"{channel}_bytes"] for run in runs]) for channel in CHANNELS}
    byte = prefix_for(np.sum([*sent.values()], axis=0).max(), "MGTPE")
    flops = [run.record.totals["flops"] for run in runs]
    flop = prefix_for(max(flops), "GTPE")
    figure = panels(
        [f"{byte}B sent", f"training {flop}FLOP", *["seconds"] * timed], shared_yaxes=True, horizontal_spacing=0.04
    )
    colours = [run.colour for run in runs]
    for channel, sizes in sent.items():
        if sizes.any():
            said, pattern = CHANNELS[channel]
            hover = f"%{{y}}, {said}: %{{x:.3g}} {byte}B<extra></extra>"
            bar = _bar(names, sizes / PREFIXES[byte], colours, pattern)
            figure.add_trace(bar.update(name=said, hovertemplate=hover, showlegend=False), row=1, col=1)
            key = _bar([names[0]], [None], [REFERENCE_COLOUR], pattern)  # a channel has no colour in the legend
            figure.add_trace(key.update(name=said, hoverinfo="skip"), row=1, col=1)
    ends = [np.sum([*sent.values()], axis=0) / PREFIXES[byte], np.array(flops) / PREFIXES[flop]]
    ends += [np.array([run.record.seconds for run in runs])] * timed
    for column, values in enumerate(ends, start=1):
        if column > 1:
            hover = "%{y}: %{x:.3g}<extra></extra>"
            bar = _bar(names, values, colours)
            figure.add_trace(bar.update(hovertemplate=hover, showlegend=False), row=1, col=column)
        figure.add_trace(_labels(names, values), row=1, col=column)
        figure.update_xaxes(range=[0, 1.3 * (values.max() or 1)], nticks=5, col=column)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    figure.update_layout(height=130 + 36 * max(len(runs), 3), bargap=0.3, barmode="stack")
    return figure


def _bar(names: Sequence[str], values: Any, colours: Sequence[str], pattern: str = "") -> go.Bar:
    marker = {"color": colours, "line": {"width": 0}, "pattern": {"shape": pattern, "size": 6, "solidity": 0.35}}
    return go.Bar(orientation="h", y=names, x=values, marker=marker)


def _labels(names: Sequence[str], values: Any) -> go.Scatter:
    """Numbers at the ends of bars."""
    said = [short(float(value)) for value in values]
    place = {
        "x": values,
        "y": names,
        "mode": "text",
        "text": [f" {one}" for one in said],
        "textposition": "middle right",
    }
    return go.Scatter(**place, hoverinfo="skip", showlegend=False, cliponaxis=False)
