"""Plotly figures of runs, on no ground of their own: the page gives them its light or dark."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedexperts.measure import Record, Row
from fedexperts.methods import Channel
from fedexperts.report.runs import PALETTE, Run, line_up

GRID = "rgba(128,128,128,0.25)"
LINE = "rgba(128,128,128,0.7)"
ACCURACY = "mean test accuracy, %"
FEW_CLIENTS = 30  # up to here each client has its own place in a figure
CELLS_WITH_NUMBERS = 400  # more counts than this cannot be read as text


def accuracy_curves(records: Sequence[Record]) -> go.Figure:
    """Mean test accuracy over the rounds, with ± one standard deviation over the clients."""
    runs = line_up(records)
    figure = _figure("round", ACCURACY, hovermode="x unified")
    for run in runs:
        figure.add_trace(_band(run, strength=min(0.15, 0.45 / len(runs))))
    for run in runs:
        figure.add_trace(_line(run, run.record.curve.rounds, _mean_accuracy(run)))
    return figure


def loss_curves(records: Sequence[Record]) -> go.Figure:
    """Mean training loss of the sampled clients over the rounds."""
    figure = _figure("round", "mean training loss", hovermode="x unified")
    for run in line_up(records):
        trained = [row for row in run.record.rows if row["train_loss"] is not None]
        rounds, total = _sums(trained, "train_loss")
        clients = np.unique([row["round"] for row in trained], return_counts=True)[1]
        figure.add_trace(_line(run, rounds, total / clients, "%{y:.4f}"))
    return figure


def traffic(records: Sequence[Record]) -> go.Figure:
    """Mean test accuracy against the megabytes that have gone through the server.

    A run that sends nothing has no way along this axis: it is a level line at its selected accuracy.
    """
    runs = line_up(records)
    megabytes = [_server_megabytes(run.record) for run in runs]
    end = max(float(sent[-1]) for sent in megabytes)
    figure = _figure("MB through the server", ACCURACY)
    figure.update_xaxes(rangemode="tozero", separatethousands=True, exponentformat="none")
    for run, sent in zip(runs, megabytes, strict=True):
        if sent[-1] > 0:
            hover = "%{y:.2f} % after %{x:.1f} MB"
            figure.add_trace(_line(run, run.record.curve.rounds, _mean_accuracy(run), hover, x=sent))
        else:
            level = 100 * run.selected.mean
            figure.add_trace(_trace(run, x=[0, end], y=[level, level], mode="lines", hovertemplate="%{y:.2f} %, no MB"))
    return figure


def client_accuracy(records: Sequence[Record]) -> go.Figure:
    """Every client in the selected round: its gain over Standalone, or its accuracy if there is none here.

    Many clients would make a cloud: then each run's are put in order, from the lowest to the highest.
    """
    runs = line_up(records)
    compared = [run for run in runs if run.gains]
    in_order = max(len(run.selected.clients) for run in runs) > FEW_CLIENTS
    figure = _figure(
        "clients, from lowest to highest" if in_order else "client",
        "gain over Standalone, points" if compared else "test accuracy, %",
    )
    for run in compared or runs:
        values = np.array(run.gains or [100 * accuracy for accuracy in run.selected.clients])
        clients = np.argsort(values, kind="stable") if in_order else np.arange(len(values))
        figure.add_trace(
            _trace(
                run,
                x=np.arange(len(values)),
                y=values[clients],
                customdata=clients,
                mode="markers",
                marker={"size": 6 if in_order else 10, "symbol": run.symbol},
                hovertemplate="client %{customdata}: %{y:" + ("+" if compared else "") + ".2f}",
            )
        )
    figure.update_xaxes(
        showticklabels=not in_order,
        showgrid=not in_order,
        zeroline=False,
        **_whole_ticks(len(runs[0].selected.clients)),
    )
    if compared:
        figure.add_hline(y=0, line={"color": LINE, "width": 1.5})
    return figure


def label_picture(counts: np.ndarray, class_names: Sequence[str], title: str = "") -> go.Figure:
    """Who has how many samples of which class: clients × classes."""
    clients, classes = counts.shape
    numbers = counts.size <= CELLS_WITH_NUMBERS
    figure = _figure("class", "client")
    figure.add_trace(
        go.Heatmap(
            z=counts,
            x=[escape(name, quote=False) for name in class_names],
            y=np.arange(clients),
            colorscale=_counts_scale(int(counts.max())),
            zmin=0,
            xgap=1 if classes <= 50 else 0,
            ygap=1 if clients <= 50 else 0,
            text=np.where(counts > 0, counts.astype(str), "") if numbers else None,
            texttemplate="%{text}" if numbers else None,
            hovertemplate="client %{y}, class %{x}: %{z} samples<extra></extra>",
            colorbar={"title": {"text": "samples"}, "thickness": 10, "outlinewidth": 0},
        )
    )
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False, **_whole_ticks(clients))
    figure.update_layout(height=160 + min(max(24 * clients, 200), 900))
    if title:
        figure.update_layout(title={"text": escape(title, quote=False)}, margin={"t": 60})
    return figure


# --- what the figures have in common


def _figure(x: str, y: str, hovermode: str = "closest") -> go.Figure:
    axis = {
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "linecolor": LINE,
        "automargin": True,
        "showspikes": False,
    }
    return go.Figure(
        layout={
            "template": "none",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "height": 420,
            "margin": {"l": 10, "r": 10, "t": 30, "b": 10},
            "font": {"family": "system-ui, sans-serif", "size": 13},
            "xaxis": axis | {"title": {"text": x}},
            "yaxis": axis | {"title": {"text": y}},
            "hovermode": hovermode,
            "showlegend": True,
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": LINE, "activecolor": LINE},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        }
    )


def _trace(run: Run, **values: Any) -> go.Scatter:
    """A trace in the run's colours; plotly reads names as HTML, so they are escaped."""
    name = escape(run.name, quote=False)
    marker = {"color": run.colour} | values.pop("marker", {})
    line = {"color": run.colour, "dash": run.dash, "width": 2}
    return go.Scatter(name=name, legendgroup=name, line=line, marker=marker, **values)


def _line(
    run: Run, rounds: np.ndarray, y: np.ndarray, hover: str = "%{y:.2f} %", x: np.ndarray | None = None
) -> go.Scatter:
    """A curve over the rounds, or over what `x` says of them, with one marker: the selected round."""
    size = np.where(rounds == run.selected.round, 11, 0)
    marker = {"size": size, "symbol": run.symbol, "opacity": 1, "line": {"width": 0}}
    return _trace(run, x=rounds if x is None else x, y=y, mode="lines+markers", marker=marker, hovertemplate=hover)


def _band(run: Run, strength: float) -> go.Scatter:
    """The clients' standard deviation around their mean, cut where no accuracy can be."""
    curve = run.record.curve
    mean, std = curve.test.mean(axis=1), curve.test.std(axis=1)
    edges = [np.minimum(mean + std, 1), np.maximum(mean - std, 0)[::-1]]
    return _trace(
        run,
        x=np.concatenate([curve.rounds, curve.rounds[::-1]]),
        y=100 * np.concatenate(edges),
        mode="none",
        fill="toself",
        fillcolor=_transparent(run.colour, strength),
        showlegend=False,
        hoverinfo="skip",
    )


def _mean_accuracy(run: Run) -> np.ndarray:
    mean: np.ndarray = 100 * run.record.curve.test.mean(axis=1)
    return mean


def _server_megabytes(record: Record) -> np.ndarray:
    """What has gone through the server by the end of each evaluated round."""
    rounds, up = _sums(record.rows, f"{Channel.UP}_bytes")
    _, down = _sums(record.rows, f"{Channel.DOWN}_bytes")
    sent = np.cumsum(up + down) / 1e6
    evaluated: np.ndarray = sent[np.searchsorted(rounds, record.curve.rounds)]
    return evaluated


def _sums(rows: Sequence[Row], column: str) -> tuple[np.ndarray, np.ndarray]:
    """The rounds, and the sum of a column over the clients in each."""
    rounds, position = np.unique([row["round"] for row in rows], return_inverse=True)
    return rounds, np.bincount(position, weights=np.array([row[column] for row in rows], dtype=float))


def _counts_scale(largest: int) -> list[tuple[float, str]]:
    """Colours of counts: none for 0, visible from 1 on, growing with the root so that small counts differ.

    Transparent, and never so strong that numbers in the page's text colour could not be read on it.
    """
    least = min(0.5 / max(largest, 1), 0.5)
    steps = np.linspace(least, 1, 11).tolist()
    return [
        (0, _transparent(PALETTE[0], 0)),
        *((x, _transparent(PALETTE[0], 0.1 + 0.6 * x**0.5)) for x in steps),
    ]


def _transparent(colour: str, opacity: float) -> str:
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red},{green},{blue},{opacity:.3f})"


def _whole_ticks(count: int) -> dict[str, int]:
    """Numbers of clients are whole: a tick for each of a few, plotly's choice for many."""
    return {"dtick": 1} if count <= 12 else {}
