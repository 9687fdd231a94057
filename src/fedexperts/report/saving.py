"""Every figure of the page as files for a paper."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go
import plotly.io

from fedexperts.errors import SettingsError
from fedexperts.measure import Record
from fedexperts.report.chapters import everything
from fedexperts.report.drawing import for_paper
from fedexperts.report.pieces import slug, unused
from fedexperts.report.values import figure_csv

KINDS = ("svg", "pdf")


def save_figures(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write each figure as SVG and PDF, and its numbers as CSV, under the names that the page gives them."""
    if find_spec("kaleido") is None:
        raise SettingsError(
            "figures as files need kaleido (pip install 'fedexperts[figures]') and a Chrome or Chromium; "
            "the page itself saves each of them without"
        )
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, go.Figure] = {}
    for section in everything(records):
        figures[unused(slug(section.heading), figures)] = section.figure.update_layout(for_paper(section.figure))
    drawn = {folder / f"{name}.{kind}": figure for name, figure in figures.items() for kind in KINDS}
    try:
        plotly.io.write_images(list(drawn.values()), [str(path) for path in drawn])
    except RuntimeError as error:  # what kaleido says without a browser
        raise SettingsError(f"the figures cannot be drawn: {str(error).strip().splitlines()[0]}") from None
    tables = {folder / f"{name}.csv": figure_csv(figure) for name, figure in figures.items()}
    for path, table in tables.items():
        path.write_text(table, encoding="utf-8")
    return [*drawn, *tables]
