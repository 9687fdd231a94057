"""Plotly figures of runs beside each other."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from fedexperts.analyses import Growth
from fedexperts.measure import Record, Row
from fedexperts.methods import Channel
from fedexperts.report.drawing import (
    FEW_CLIENTS,
    LINE,
    band,
    canvas,
    heat_map,
    panels,
    text,
    trace,
    transparent,
    whole_ticks,
)
from fedexperts.report.runs import PALETTE, Line, Run, line_up, lines

ACCURACY = "mean test accuracy, %"
WAYS = (("solid", "server", (Channel.UP, Channel.DOWN)), ("dot", "between clients", (Channel.PEER,)))
WIDE = 50  # times: what is further apart is drawn by powers of ten
FEW_ROUNDS = 30


def accuracy_curves(records: Sequence[Record]) -> go.Figure:
    """Mean test accuracy over the rounds, with ± one standard deviation over the clients.

    Runs that differ only in their seed are one line, their mean; then the bands are over the seeds.
    """
    drawn = lines(line_up(records))
    repeated = any(len(line.records) > 1 for line in drawn)
    figure = canvas("round", ACCURACY, hovermode="x unified")
    for line in drawn:
        values = line.means if repeated else line.records[0].curve.test.T
        if not repeated or len(values) > 1:
            std = values.std(axis=0, ddof=int(repeated))
            strength = min(0.15, 0.45 / len(drawn))
            figure.add_trace(band(line.run, line.rounds, values.mean(axis=0), std, strength))
    for line in drawn:
        mean = 100 * line.means.mean(axis=0)
        if len(line.records) > 1:  # each seed has its own selected round: no marker
            figure.add_trace(trace(line.run, x=line.rounds, y=mean, mode="lines", hovertemplate="%{y:.2f} %"))
        else:
            figure.add_trace(_line(line.run, line.rounds, mean))
    return figure


def loss_curves(records: Sequence[Record]) -> go.Figure:
    """Mean training loss of the sampled clients over the rounds."""
    figure = canvas("round", "mean training loss", hovermode="x unified")
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
    megabytes = [_sent_by_evaluation(run.record) for run in runs]
    end = max(float(sent[-1]) for sent in megabytes)
    figure = canvas("MB through the server", ACCURACY)
    figure.update_xaxes(rangemode="tozero", separatethousands=True, exponentformat="none")
    for run, sent in zip(runs, megabytes, strict=True):
        if sent[-1] > 0:
            hover = "%{y:.2f} % after %{x:.1f} MB"
            accuracy = 100 * run.record.curve.test.mean(axis=1)
            figure.add_trace(_line(run, run.record.curve.rounds, accuracy, hover, x=sent))
        else:
            level = 100 * run.selected.mean
            figure.add_trace(trace(run, x=[0, end], y=[level, level], mode="lines", hovertemplate="%{y:.2f} %, no MB"))
    return figure


def traffic_over_rounds(drawn: Sequence[Line]) -> go.Figure:
    """Megabytes through the server and between clients, in each round and so far; seeds are averaged.

    The two may be far apart: then by powers of ten, on which nothing at all has no place. Where a shared expert grows,
    and its tree is known, its size stands beside it.
    """
    sent = [(line, dash, name, _mean_megabytes(line, channels)) for line in drawn for dash, name, channels in WAYS]
    sent = [one for one in sent if one[3].any()]
    positive = np.concatenate([values[values > 0] for *_, values in sent]) if sent else np.ones(1)
    wide = positive.max() / positive.min() >= WIDE
    sizes = [(line, grown) for line in drawn if (grown := _sub_experts(line)) is not None]
    figure = panels(["round"] * (3 if sizes else 2), horizontal_spacing=0.08)
    for panel in (1, 2):
        for line, dash, name, values in sent:
            y = values if panel == 1 else np.cumsum(values)
            shown = go.Scatter(
                name=text(f"{line.run.name}, {name}"),
                legendgroup=text(f"{line.run.name}, {name}"),
                showlegend=panel == 1,
                x=np.unique([row["round"] for row in line.run.record.rows]),
                y=np.where(y > 0, y, np.nan) if wide else y,
                mode="lines+markers" if len(y) <= FEW_ROUNDS else "lines",
                line={"color": line.run.colour, "dash": dash, "width": 2},
                marker={"color": line.run.colour, "symbol": line.run.symbol},
                hovertemplate="round %{x}: %{y:.3g} MB",
            )
            figure.add_trace(shown, row=1, col=panel)
        figure.update_yaxes(title={"text": ("MB in the round", "MB so far")[panel - 1]}, col=panel)
        figure.update_yaxes(
            {"type": "log", "dtick": 1, "exponentformat": "none"} if wide else {"rangemode": "tozero"}, col=panel
        )
    for line, grown in sizes:
        step = {"x": np.arange(1, len(grown) + 1), "y": grown, "mode": "lines", "showlegend": False}
        shown = trace(line.run, **step, hovertemplate="round %{x}: %{y:.3g} sub-experts")
        figure.add_trace(shown.update(line={"shape": "hv"}), row=1, col=3)
        figure.update_yaxes(title={"text": "sub-experts"}, rangemode="tozero", col=3)
    return figure


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
        figure.update_xaxes(tickmode="array", tickvals=list(range(len(names))), ticktext=names)
    if compared:
        figure.add_hline(y=0, line={"color": LINE, "width": 1.5})
    return figure


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
        figure.update_yaxes(type="category", dtick=None)
    if title:
        figure.update_layout(title={"text": text(title)}, margin={"t": 60})
    return figure


# --- what the figures have in common


def _line(
    run: Run, rounds: np.ndarray, y: np.ndarray, hover: str = "%{y:.2f} %", x: np.ndarray | None = None
) -> go.Scatter:
    """A curve over the rounds, or over what `x` says of them, with one marker: the selected round."""
    size = np.where(rounds == run.selected.round, 11, 0)
    marker = {"size": size, "symbol": run.symbol, "opacity": 1, "line": {"width": 0}}
    return trace(run, x=rounds if x is None else x, y=y, mode="lines+markers", marker=marker, hovertemplate=hover)


def _sent_by_evaluation(record: Record) -> np.ndarray:
    """What has gone through the server by the end of each evaluated round."""
    sent = np.cumsum(server_megabytes(record))
    evaluated: np.ndarray = sent[np.searchsorted(np.unique([r["round"] for r in record.rows]), record.curve.rounds)]
    return evaluated


def server_megabytes(record: Record) -> np.ndarray:
    """What goes through the server in each round, up and down."""
    ways = [_sums(record.rows, f"{channel}_bytes")[1] for channel in (Channel.UP, Channel.DOWN)]
    megabytes: np.ndarray = np.sum(ways, axis=0) / 1e6
    return megabytes


def _sub_experts(line: Line) -> np.ndarray | None:
    """How many the shared expert has in each round, on average over the line's runs, if all of them know."""
    growths = [Growth.load(record) for record in line.records]
    sizes = [growth.leaves() for growth in growths if growth is not None]
    return np.mean(sizes, axis=0) if len(sizes) == len(growths) else None


def _mean_megabytes(line: Line, channels: Sequence[Channel]) -> np.ndarray:
    """In each round, all clients together, averaged over the line's runs."""
    of_each = [_sums(record.rows, f"{channel}_bytes")[1] for record in line.records for channel in channels]
    megabytes: np.ndarray = np.sum(of_each, axis=0) / len(line.records) / 1e6
    return megabytes


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
        (0, transparent(PALETTE[0], 0)),
        *((x, transparent(PALETTE[0], 0.1 + 0.6 * x**0.5)) for x in steps),
    ]
