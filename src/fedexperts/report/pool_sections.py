"""A pool of modules and those who mix it, as sections: a function for each question, from records to sections."""

from collections.abc import Iterator

import numpy as np
from scipy.stats import spearmanr

from fedexperts import analyses
from fedexperts.analyses import Bound, Likeness, Pool
from fedexperts.measure import Record
from fedexperts.report import pool_figures as drawn
from fedexperts.report.drawing import text
from fedexperts.report.peer_figures import mixture as mixture_figure
from fedexperts.report.peer_sections import BY_CLASS, alike_in_words
from fedexperts.report.section import Section
from fedexperts.report.table import percent, rough
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
    if not record.counts.any(axis=1).all():  # a federation's server does not know its sites' labels
        return
    overlap = analyses.overlap(record.counts)
    yield Section(
        f"Who gains by the mixture: {name}",
        "A point is a client: the gain above, against how much of its label mix others share, Σ_c min(p_i(c), p_j(c)), "
        "the mean over the other clients j: 0 if nobody has its classes, 1 if all have them in the same parts.",
        drawn.gains_by_overlap(found, overlap, base),
        _correlation(overlap, found.gains_everywhere.points),
    )


def pool(record: Record, name: str | None = None) -> Iterator[Section]:
    """Whose modules a client uses, what denoising removes, and what Theorem 3.1 says; nothing before `analyse pool`."""
    found = Pool.load(record.folder, len(record.counts))
    if found is None:
        return
    name, dominant = name or record.title, analyses.dominant_classes(record.counts)
    yield Section(
        f"Whose modules are used: {name}",
        "A row is a client, a column a client's module: the mean of the weights that the row's gate gives it, over its "
        f"test samples, after the last round. On the right the same, {BY_CLASS}: if clients use the modules of those "
        "with like data, the squares along the diagonal are strong.",
        mixture_figure(found.weight, list(map(str, range(len(dominant)))), dominant, record.class_names, "uses"),
        _use_in_words(found, analyses.likeness(found.weight, dominant)),
    )
    yield Section(
        f"What is taken for noise: {name}",
        "A row is a client, a column another client's module. On the left its confidence H, the higher the more its "
        "output has to do with that of the client's own module; on the right for which part of the client's test "
        "samples it was among the lowest and removed. The own module has no cell: it is never removed.",
        drawn.energy(found),
        _noise_in_words(found, record.settings.options["denoise"]),
    )
    if (promised := analyses.bound(found)) is not None:
        yield _bound(record, found, promised, name)


def _bound(record: Record, pool: Pool, promised: Bound, name: str) -> Section:
    """Theorem 3.1 beside what was measured, for each client and in words for all."""
    own, mean, last = np.diag(pool.right), np.nanmean(pool.right, axis=1), record.figures["last"]
    of_each = [analyses.bound(pool.of(client)) for client in range(len(own))]
    least = np.array([own[client] if one is None else one.least for client, one in enumerate(of_each)])
    reached, base = np.array(last.clients), analyses.base_of(record).title
    alone, broken = pool.mean(pool.right, np.eye(len(own), dtype=bool)), int((reached < least).sum())
    return Section(
        f"What Theorem 3.1 promises: {name}",
        "For each client, from its own p, α and M: the accuracy that the theorem promises at least, what the mixture "
        "reaches in the last round, what the client's own module reaches alone, and p, the mean of all modules in its "
        "place. A point below the line is a promise that was not kept.",
        drawn.bounds({"promised": least, "mixture": reached, f"{text(base)} alone": own, "mean module": mean}),
        _bound_in_words(promised, last.weighted, broken, alone, base),
    )


# --- in words


def _correlation(overlap: np.ndarray, gains: np.ndarray) -> str:
    if min(len(set(overlap)), len(set(gains))) < 2:
        return "All clients gain the same, or share the same: there is nothing to see."
    found = spearmanr(overlap, gains)
    chance = f"p = {found.pvalue:.2g}" if found.pvalue >= 0.001 else "p < 0.001"
    return f"Rank correlation of gain and sharing: {found.statistic:+.2f} over {len(gains)} clients ({chance})."


def _use_in_words(pool: Pool, like: Likeness | None) -> str:
    own, others = float(np.diag(pool.weight).mean()), float(np.where(pool.others, pool.weight, 0).sum(axis=1).mean())
    return (
        f"A client's own module has on average {rough(own)} of its weights, all others together have {rough(others)}. "
        + alike_in_words(like, "of what they have is")
    )


def _noise_in_words(pool: Pool, part: float) -> str:
    removed = pool.mean(pool.removed, pool.others)
    if not removed > 0:
        return "Nothing is removed: " + (f"of so few modules γ = {part:g} is less than one." if part else "γ = 0.")
    right, removed_right = (pool.mean(one, pool.others) for one in (pool.right, pool.removed_right))
    return (
        f"Of the others' modules {rough(removed)} are removed (γ = {part:g}). Those are right on "
        f"{rough(removed_right / removed)} of their samples, those that stay on "
        f"{rough((right - removed_right) / (1 - removed))}."
    )


def _bound_in_words(promised: Bound, reached: float, broken: int, alone: float, base: str) -> str:
    means = f"p = {promised.right:.3f}, α = {promised.alpha:.2f}, M = {promised.modules:.3g}"
    if promised.alpha <= 0:
        return f"{means}: the gates do not prefer modules that are right, and the theorem is about those that do."
    kept = "which keeps the promise" if reached >= promised.least else "which BREAKS the promise"
    said = (
        f"{means}: at least {percent(promised.least)} % of all test samples are promised, {percent(reached)} % were "
        f"measured, {kept}; {broken} clients are below their own. Whether the mixture pays is another question: what "
        f"it promises to beat is p, and {base} alone reaches {percent(alone)} %."
    )
    if promised.independent:
        return said
    return (
        f"{said} Its assumption does not hold: modules are not right independently of each other. The part of them "
        f"that is right varies from sample to sample by {promised.spread:.2g} times the variance that it would have "
        "then."
    )
