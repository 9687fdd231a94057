"""Plotly figures of what runs send."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from fedexperts.analyses import Growth
from fedexperts.measure import Record
from fedexperts.methods import Channel
from fedexperts.report.drawing import canvas, folded, panels, text, trace, with_room
from fedexperts.report.figures import ACCURACY, run_line, sums
from fedexperts.report.runs import Line, line_up

WAYS = (("solid", "server", (Channel.UP, Channel.DOWN)), ("dot", "between clients", (Channel.PEER,)))
WIDE = 50  # times: what is further apart is drawn by powers of ten
FEW_ROUNDS = 30


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
            accuracy = 100 * run.record.curve.means()
            figure.add_trace(run_line(run, run.record.curve.rounds, accuracy, hover, x=sent))
        else:
            level = 100 * run.selected.mean
            figure.add_trace(trace(run, x=[0, end], y=[level, level], mode="lines", hovertemplate="%{y:.2f} %, no MB"))
    return with_room(figure)


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
                name=folded(f"{line.run.name}, {name}", 40),
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
    return with_room(figure)


def _sent_by_evaluation(record: Record) -> np.ndarray:
    """What has gone through the server by the end of each evaluated round."""
    sent = np.cumsum(server_megabytes(record))
    evaluated: np.ndarray = sent[np.searchsorted(np.unique([r["round"] for r in record.rows]), record.curve.rounds)]
    return evaluated


def server_megabytes(record: Record) -> np.ndarray:
    """What goes through the server in each round, up and down."""
    ways = [sums(record.rows, f"{channel}_bytes")[1] for channel in (Channel.UP, Channel.DOWN)]
    megabytes: np.ndarray = np.sum(ways, axis=0) / 1e6
    return megabytes


def _sub_experts(line: Line) -> np.ndarray | None:
    """How many the shared expert has in each round, on average over the line's runs, if all of them know."""
    growths = [Growth.load(record) for record in line.records]
    sizes = [growth.leaves() for growth in growths if growth is not None]
    return np.mean(sizes, axis=0) if len(sizes) == len(growths) else None


def _mean_megabytes(line: Line, channels: Sequence[Channel]) -> np.ndarray:
    """In each round, all clients together, averaged over the line's runs."""
    of_each = [sums(record.rows, f"{channel}_bytes")[1] for record in line.records for channel in channels]
    megabytes: np.ndarray = np.sum(of_each, axis=0) / len(line.records) / 1e6
    return megabytes
