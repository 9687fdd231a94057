"""A pool of modules and those who mix it, as sections: a function for each question, from records to sections."""

from collections.abc import Iterator

import numpy as np
from scipy.stats import spearmanr

from fedexperts import analyses
from fedexperts.measure import Record
from fedexperts.report import pool_figures as drawn
from fedexperts.report.section import Section
from fedexperts.report.verdict import mixture_verdict


def mixture(record: Record, name: str | None = None) -> Iterator[Section]:
    """What the mixture is worth to each client, and to whom; nothing for other methods."""
    found = analyses.mixture(record)
    if found is None:
        return
    name, base = name or record.title, analyses.base_of(record).title
    yield Section(
        f"To use the mixture or not: {name}",
        "A bar is a client: how many points of test accuracy the mixture gives it more (up) or less (down) than "
        f"{base} alone, in round {found.everywhere.round}, the best on validation data of those in which there is a "
        "mixture. Blue bars use it, as their own validation accuracy is higher with it; grey ones do not. A blue bar "
        "below the line was misled by its validation data.",
        drawn.gains(found, base),
        mixture_verdict(record),
    )
    overlap = analyses.overlap(record.counts)
    yield Section(
        f"Who gains by the mixture: {name}",
        "A point is a client: the gain above, against how much of its label mix others share, Σ_c min(p_i(c), p_j(c)), "
        "the mean over the other clients j: 0 if nobody has its classes, 1 if all have them in the same parts.",
        drawn.gains_by_overlap(found, overlap, base),
        _correlation(overlap, found.gains_everywhere.points),
    )


# --- in words


def _correlation(overlap: np.ndarray, gains: np.ndarray) -> str:
    if min(len(set(overlap)), len(set(gains))) < 2:
        return "All clients gain the same, or share the same: there is nothing to see."
    found = spearmanr(overlap, gains)
    chance = f"p = {found.pvalue:.2g}" if found.pvalue >= 0.001 else "p < 0.001"
    return f"Rank correlation of gain and sharing: {found.statistic:+.2f} over {len(gains)} clients ({chance})."
