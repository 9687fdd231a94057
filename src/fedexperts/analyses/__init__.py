"""Questions to finished runs: to their histories, or to their models. The figures are drawn in `report`."""

from fedexperts.analyses.clients import Difference, difference
from fedexperts.analyses.gates import GATES, gate_weights, weighs
from fedexperts.analyses.representations import REPRESENTATIONS, embed
from fedexperts.analyses.samples import SampleTable
from fedexperts.analyses.sweep import Point, Sweep, SweepLine, by_seed, sweep, swept

__all__ = [
    "GATES", "REPRESENTATIONS", "Difference", "Point", "SampleTable", "Sweep", "SweepLine",
    "by_seed", "difference", "embed", "gate_weights", "sweep", "swept", "weighs",
]  # fmt: skip
