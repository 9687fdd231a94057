"""Plotly figures of runs beside each other."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from fedexperts.measure import Record, Row
from fedexperts.report.drawing import (
    FEW_CLIENTS,
    LINE,
    band,
    canvas,
    heat_map,
    name_ticks,
    text,
    trace,
    transparent,
    whole_ticks,
    with_room,
)
from fedexperts.report.runs import PALETTE, Run, line_up, lines

ACCURACY = "mean test accuracy, %"


def accuracy_curves(records: Sequence[Record], samples: bool = False) -> go.Figure:
    """Mean test accuracy over the rounds, with ± one standard deviation over the clients; both may be by samples.

    Runs that differ only in their seed are one line, their mean; then the bands are over the seeds.
    """
    drawn = lines(line_up(records))
    repeated = any(len(line.records) > 1 for line in drawn)
    figure, lines_above = canvas("round", ACCURACY, hovermode="x unified"), []
    spread = f"std over {'seeds' if repeated else 'clients'}, points"
    for line in drawn:
        record, means = line.records[0], line.means(samples)
        mean, more = means.mean(axis=0), {}
        if not repeated or len(means) > 1:
            std = means.std(axis=0, ddof=1) if repeated else record.curve.spreads(samples)
            strength = min(0.15, 0.45 / len(drawn))
            figure.add_trace(band(line.run, line.rounds, mean, std, strength))
            more = {"customdata": 100 * std, "meta": [spread]}
        if len(line.records) > 1:  # each seed has its own selected round: no marker
            curve = trace(line.run, x=line.rounds, y=100 * mean, mode="lines", hovertemplate="%{y:.2f} %")
        else:
            selected = record.figures_by(samples)["selected"].round
            curve = run_line(line.run, line.rounds, 100 * mean, selected=selected)
        lines_above.append(curve.update(more))
    figure.add_traces(lines_above)
    return with_room(figure)


def loss_curves(records: Sequence[Record]) -> go.Figure:
    """Mean training loss of the sampled clients over the rounds."""
    figure = canvas("round", "mean training loss", hovermode="x unified")
    for run in line_up(records):
        trained = [row for row in run.record.rows if row["train_loss"] is not None]
        rounds, total = sums(trained, "train_loss")
        clients = np.unique([row["round"] for row in trained], return_counts=True)[1]
        figure.add_trace(run_line(run, rounds, total / clients, "%{y:.4f}"))
    return with_room(figure)


def client_accuracy(records: Sequence[Record]) -> go.Figure:
    """Every client in the selected round: its gain over Standalone, or its accuracy if there is none here.

    Many clients would make a cloud: then each run's are put in order, from the lowest to the highest.
    """
    runs = line_up(records)
    compared = [run for run in runs if run.gains]
    in_order = max(len(run.selected.clients) for run in runs) > FEW_CLIENTS
    figure = canvas(
        "clients, from lowest to highest" if in_order else "client",
        "gain over Standalone, points" if compared else "test accuracy, %",
    )
    for run in compared or runs:
        values = np.array(run.gains or [100 * accuracy for accuracy in run.selected.clients])
        clients = np.argsort(values, kind="stable") if in_order else np.arange(len(values))
        names = own_names(run.record)
        figure.add_trace(
            trace(
                run,
                x=np.arange(len(values)),
                y=values[clients],
                customdata=[names[k] for k in clients] if names else clients,
                meta=["client"],
                mode="markers",
                marker={"size": 6 if in_order else 10, "symbol": run.symbol},
                hovertemplate="client %{customdata}: %{y:" + ("+" if compared else "") + ".2f}",
            )
        )
    figure.update_xaxes(
        showticklabels=not in_order,
        showgrid=not in_order,
        zeroline=False,
        **whole_ticks(len(runs[0].selected.clients)),
    )
    if (names := own_names(runs[0].record)) and not in_order:
        figure.update_xaxes(name_ticks(names) | {"tickvals": list(range(len(names)))})
    if compared:
        figure.add_hline(y=0, line={"color": LINE, "width": 1.5})
    return with_room(figure)


def own_names(record: Record) -> list[str]:
    """What the clients are called, where that is more than a number."""
    names = list(record.client_names)
    return [] if names == [str(k) for k in range(len(names))] else [text(name) for name in names]


def label_picture(
    counts: np.ndarray, class_names: Sequence[str], title: str = "", client_names: Sequence[str] = ()
) -> go.Figure:
    """Who has how many samples of which class: clients × classes."""
    figure = heat_map(
        counts,
        class_names,
        np.where(counts > 0, counts.astype(str), ""),
        ("class", "client"),
        colorscale=_counts_scale(int(counts.max())),
        hovertemplate="client %{y}, class %{x}: %{z} samples<extra></extra>",
        colorbar={"title": {"text": "samples"}, "thickness": 10, "outlinewidth": 0},
    )
    if client_names:
        figure.data[0].y = list(client_names)
        figure.update_yaxes(type="category", dtick=None, **name_ticks(client_names))
    if title:
        figure.update_layout(title={"text": text(title)}, margin={"t": 60})
    return figure


# --- what the figures have in common


def run_line(
    run: Run,
    rounds: np.ndarray,
    y: np.ndarray,
    hover: str = "%{y:.2f} %",
    x: np.ndarray | None = None,
    selected: int | None = None,
) -> go.Scatter:
    """A curve over the rounds, or over what `x` says of them, with one marker: the selected round."""
    size = np.where(rounds == (selected or run.selected.round), 11, 0)
    marker = {"size": size, "symbol": run.symbol, "opacity": 1, "line": {"width": 0}}
    return trace(run, x=rounds if x is None else x, y=y, mode="lines+markers", marker=marker, hovertemplate=hover)


def sums(rows: Sequence[Row], column: str) -> tuple[np.ndarray, np.ndarray]:
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
        (0, transparent(PALETTE[0], 0)),
        *((x, transparent(PALETTE[0], 0.1 + 0.6 * x**0.5)) for x in steps),
    ]
