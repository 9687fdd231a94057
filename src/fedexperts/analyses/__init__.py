"""Questions to finished runs: to their histories, or to their models. The figures are drawn in `report`."""

from fedexperts.analyses.bound import Bound, bound
from fedexperts.analyses.clients import Difference, difference
from fedexperts.analyses.experts import agreement, shares_chosen, times_chosen
from fedexperts.analyses.gates import GATES, gate_weights, weighs
from fedexperts.analyses.likeness import Likeness, dominant_classes, likeness, overlap
from fedexperts.analyses.matrix import MATRIX, Matrix, aggregation_matrix, mixes
from fedexperts.analyses.mixture import Mixture, Selected, base_of, mixture, pools
from fedexperts.analyses.peers import Fetched, fetched
from fedexperts.analyses.pool import POOL, Pool, pool_use
from fedexperts.analyses.representations import REPRESENTATIONS, embed
from fedexperts.analyses.samples import SampleTable
from fedexperts.analyses.spectra import NORMAL, OVER, UNDER, Spectrum, load_spectra
from fedexperts.analyses.sweep import Point, Sweep, SweepLine, by_seed, sweep, swept
from fedexperts.analyses.tree import Growth, Life, shares_an_expert
from fedexperts.analyses.use import USE, Use, use

__all__ = [
    "GATES", "MATRIX", "NORMAL", "OVER", "POOL", "REPRESENTATIONS", "UNDER", "USE",
    "Bound", "Difference", "Fetched", "Growth", "Life", "Likeness", "Matrix", "Mixture", "Point", "Pool", "SampleTable",
    "Selected", "Spectrum", "Sweep", "SweepLine", "Use",
    "aggregation_matrix", "agreement", "base_of", "bound", "by_seed", "difference", "dominant_classes", "embed",
    "fetched", "gate_weights", "likeness", "load_spectra", "mixes", "mixture", "overlap", "pool_use", "pools",
    "shares_an_expert", "shares_chosen", "sweep", "swept", "times_chosen", "use",
    "weighs",
]  # fmt: skip
