"""What a page is made of."""

from typing import NamedTuple

import plotly.graph_objects as go


class Section(NamedTuple):
    """A figure on a page; the finding is what it says, in a sentence."""

    heading: str
    how_to_read: str
    figure: go.Figure
    finding: str = ""
