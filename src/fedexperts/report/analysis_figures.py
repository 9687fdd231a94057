"""Plotly figures of the analyses: one for each question that can be asked of finished runs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedexperts.analyses import Difference, SampleTable, Sweep
from fedexperts.measure import Cost
from fedexperts.report.drawing import (
    FEW_CLIENTS,
    LINE,
    band,
    canvas,
    folded,
    heat_map,
    panels,
    text,
    trace,
    transparent,
)
from fedexperts.report.runs import PALETTE, REFERENCE_COLOUR, SYMBOLS, Run
from fedexperts.report.table import PREFIXES, prefix_for, short
from fedexperts.report.values import AGAIN

FEW_GROUPS = 12  # up to here each client or class has a colour of its own

FACTORS = 50
"""So far apart are the largest and the smallest of a setting's values that were chosen by factors."""


def client_differences(run: Run, other: Run, difference: Difference) -> go.Figure:
    """A bar for each client, in the colour of the better run."""
    better = difference.points >= 0
    return difference_bars(
        difference,
        [(f"{text(run.name)} is better", run.colour, better), (f"{text(other.name)} is better", other.colour, ~better)],
    )


def difference_bars(difference: Difference, groups: Sequence[tuple[str, str, np.ndarray]]) -> go.Figure:
    """A bar for each client, from its greatest loss to its greatest gain; groups are a name, a colour and who it is."""
    order = np.argsort(difference.points, kind="stable")
    figure = canvas("client" if len(order) <= FEW_CLIENTS else "clients, in order", "difference, points")
    for name, colour, members in groups:
        places = np.flatnonzero(members[order])
        figure.add_trace(
            go.Bar(
                name=name,
                x=places,
                y=difference.points[order][places],
                customdata=order[places],
                meta=["client"],
                marker={"color": colour, "line": {"width": 0}},
                hovertemplate="client %{customdata}: %{y:+.2f}<extra></extra>",
            )
        )
    few = len(order) <= FEW_CLIENTS
    figure.update_xaxes(showgrid=False, zeroline=False, showticklabels=few)
    if few:
        figure.update_xaxes(tickvals=np.arange(len(order)), ticktext=[str(client) for client in order])
    figure.update_layout(bargap=0.15)
    figure.add_hline(y=0, line={"color": LINE, "width": 1.5})
    return figure


def cost_bars(runs: Sequence[Run], costs: Sequence[Cost | None]) -> go.Figure:
    """Rounds, traffic and FLOPs side by side, a bar for each run; no bar where the target was not reached."""
    spent = [cost for cost in costs if cost is not None]
    byte = prefix_for(max((cost.bytes for cost in spent), default=0), "MGTPE")
    flop = prefix_for(max((cost.flops for cost in spent), default=0), "GTPE")
    measures: dict[str, Callable[[Cost], float]] = {
        "rounds": lambda cost: cost.round,
        f"{byte}B sent": lambda cost: cost.bytes / PREFIXES[byte],
        f"training {flop}FLOP": lambda cost: cost.flops / PREFIXES[flop],
    }
    figure = panels(list(measures), shared_yaxes=True, horizontal_spacing=0.04)
    for column, (title, measure) in enumerate(measures.items(), start=1):
        values = [None if cost is None else measure(cost) for cost in costs]
        whole = title == "rounds"
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=[folded(run.name) for run in runs],
                x=[value or 0 for value in values],
                text=["not reached" if v is None else str(v) if whole else short(v) for v in values],
                textposition="outside",
                cliponaxis=False,
                marker={"color": [run.colour for run in runs], "line": {"width": 0}},
                hovertemplate=f"%{{y}}: %{{text}} {title}<extra></extra>",
            ),
            row=1,
            col=column,
        )
        end = max((value for value in values if value is not None), default=0) or 1
        figure.update_xaxes(range=[0, 1.35 * end], nticks=5, col=column)  # room for the numbers
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(showlegend=False, height=120 + 36 * max(len(runs), 3), bargap=0.3)
    return figure


def sweep_lines(sweep: Sweep, looks: Sequence[Run], called: str) -> go.Figure:
    """Accuracy against a setting, a line for each method, with ± one standard deviation over the seeds."""
    values = sorted({point.value for line in sweep.lines for point in line.points})
    scale = _scale(values)
    place = "{:g}".format if scale == "category" else float
    figure = canvas(called, "mean test accuracy, %")
    for line, look in zip(sweep.lines, looks, strict=True):
        x, mean = np.array([place(point.value) for point in line.points]), np.array([p.mean for p in line.points])
        if any(point.std for point in line.points):
            std = np.array([point.std or 0 for point in line.points])
            figure.add_trace(band(look, x, mean, std, strength=0.15))
        if line.level is None:
            marker = {"size": 9, "symbol": look.symbol}
            hover = "%{y:.2f} % at %{x}"
            figure.add_trace(trace(look, x=x, y=100 * mean, mode="lines+markers", marker=marker, hovertemplate=hover))
        else:
            level = [100 * line.level] * 2
            ends = [place(values[0]), place(values[-1])]
            figure.add_trace(trace(look, x=ends, y=level, mode="lines", hovertemplate="%{y:.2f} %"))
    ticks = [place(value) for value in values]
    figure.update_xaxes(tickvals=ticks, type=scale, categoryarray=ticks, zeroline=False)
    return figure


def _scale(values: Sequence[float]) -> str:
    """Values chosen by factors, as learning rates are, stand by factors; with a zero among them, in even steps."""
    least = min((value for value in values if value > 0), default=1.0)
    if values[-1] / least < FACTORS:
        return "linear"
    return "log" if values[0] > 0 else "category"


def weights_by_client(table: SampleTable, clients: Sequence[int], experts: Sequence[int]) -> go.Figure:
    """The distribution of weights over each client's test samples."""
    figure = canvas("client", "weight")
    for expert in experts:
        name, colour = text(table.names[expert]), PALETTE[expert % len(PALETTE)]
        for client in clients:
            figure.add_trace(
                go.Violin(
                    name=name,
                    legendgroup=name,
                    offsetgroup=name,
                    showlegend=client == clients[0],
                    x0=str(client),
                    y=np.round(table.values[table.clients == client, expert], 4),
                    scalegroup=f"{client} {name}",  # all are equally wide
                    scalemode="width",
                    spanmode="hard",  # no density where no weight is
                    points=False,
                    line={"color": colour, "width": 1},
                    fillcolor=transparent(colour, 0.35),
                    box={"visible": True, "width": 0.15},
                )
            )
    figure.update_xaxes(type="category", showgrid=False)
    return _weights(figure, len(experts), "violin")


def weights_by_class(table: SampleTable, class_names: Sequence[str], experts: Sequence[int]) -> go.Figure:
    """The distribution of weights over all clients' test samples of each class: quartiles, and the whole range."""
    figure = canvas("class", "weight")
    classes = np.unique(table.classes)
    for expert in experts:
        own = [table.values[table.classes == one, expert] for one in classes]
        low, first, middle, third, high = np.array([np.quantile(v, [0, 0.25, 0.5, 0.75, 1]) for v in own]).T
        colour = PALETTE[expert % len(PALETTE)]
        figure.add_trace(
            go.Box(
                name=text(table.names[expert]),
                x=[text(class_names[one]) for one in classes],
                lowerfence=low, q1=first, median=middle, q3=third, upperfence=high,
                mean=[v.mean() for v in own],
                line={"color": colour, "width": 1.5},
                fillcolor=transparent(colour, 0.35),
            )
        )  # fmt: skip
    figure.update_xaxes(type="category", showgrid=False)
    return _weights(figure, len(experts), "box")


def _weights(figure: go.Figure, experts: int, kind: str) -> go.Figure:
    figure.update_yaxes(range=[0, 1], zeroline=False)
    figure.update_layout({f"{kind}mode": "group" if experts > 1 else "overlay", "showlegend": experts > 1})
    return figure


def mean_weights(means: np.ndarray, columns: Sequence[str], across: str, share: float) -> go.Figure:
    """Clients × classes (or experts): the mean weight, and whether it is above an equal share."""
    below, equal, above = (
        transparent(PALETTE[1], 0.7),
        transparent(REFERENCE_COLOUR, 0.25),
        transparent(PALETTE[0], 0.7),
    )
    return heat_map(
        means,
        columns,
        np.where(np.isnan(means), "", np.char.mod("%.2f", np.nan_to_num(means))),
        (across, "client"),
        zmax=1,
        colorscale=[(0, below), (share, equal), (1, above)],
        hoverongaps=False,
        hovertemplate=f"client %{{y}}, {across} %{{x}}: %{{z:.3f}}<extra></extra>",
        colorbar={"title": {"text": "weight"}, "thickness": 10, "outlinewidth": 0},
    )


def plane(table: SampleTable, class_names: Sequence[str]) -> go.Figure:
    """Every sample as a point, on the left in the colour of its client, on the right in that of its class."""
    figure = panels(["", ""], horizontal_spacing=0.16, subplot_titles=["coloured by client", "coloured by class"])
    _points(figure, 1, "client", table, table.clients, [str(client) for client in range(table.clients.max() + 1)])
    _points(figure, 2, "class", table, table.classes, [text(name) for name in class_names])
    bare = {"showticklabels": False, "showgrid": False, "zeroline": False, "mirror": True, "showline": True}
    figure.update_xaxes(bare)
    figure.update_yaxes(bare)
    figure.update_layout(height=460, margin={"r": 110})
    return figure


def _points(
    figure: go.Figure, panel: int, what: str, table: SampleTable, group_of: np.ndarray, called: Sequence[str]
) -> None:
    """The samples in one panel, with a legend at its right; of more groups than have colours, by number on a scale."""
    groups = np.unique(group_of).tolist()
    names = ["client", "class"] if panel == 1 else AGAIN
    edge = figure.get_subplot(1, panel).xaxis.domain[1] + 0.01
    if len(groups) > FEW_GROUPS:
        bar = {"title": {"text": what}, "x": edge, "xanchor": "left", "thickness": 10, "outlinewidth": 0}
        scale = {"color": group_of, "colorscale": "Turbo", "colorbar": bar, "size": 5}
        figure.add_trace(
            _dots(table, np.full(len(group_of), True), scale, showlegend=False, meta=names), row=1, col=panel
        )
        return
    legend = "legend" if panel == 1 else f"legend{panel}"
    for number, group in enumerate(groups):
        turn, place = divmod(number, len(PALETTE))
        look = {"size": 6, "color": PALETTE[place], "symbol": SYMBOLS[turn]}
        dots = _dots(table, group_of == group, look, name=called[group], legend=legend, meta=names)
        figure.add_trace(dots, row=1, col=panel)
    figure.update_layout({legend: {"title": {"text": what}, "x": edge, "y": 1, "orientation": "v", "yanchor": "top"}})


def _dots(table: SampleTable, mine: np.ndarray, marker: dict[str, Any], **values: Any) -> go.Scatter:
    return go.Scatter(
        x=table.values[mine, 0],
        y=table.values[mine, 1],
        customdata=np.stack([table.clients[mine], table.classes[mine]], axis=1),
        mode="markers",
        marker=marker | {"line": {"width": 0}},
        hovertemplate="client %{customdata[0]}, class %{customdata[1]}<extra></extra>",
        **values,
    )
