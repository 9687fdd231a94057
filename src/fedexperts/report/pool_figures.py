"""Plotly figures of a pool of modules and of those who mix it."""

import numpy as np
import plotly.graph_objects as go

from fedexperts.analyses import Mixture
from fedexperts.report.analysis_figures import difference_bars
from fedexperts.report.drawing import LINE, canvas, text
from fedexperts.report.runs import PALETTE, REFERENCE_COLOUR


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
