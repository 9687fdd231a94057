"""What PM-MoE's mixtures are worth in the runs of a recipe, where every client chooses on validation data."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedexperts import analyses
from fedexperts.analyses import Difference, Mixture, Selected
from fedexperts.recipes.recipe import Recipe
from fedexperts.recipes.reproduce import Outcome
from fedexperts.report.table import over_seeds
from fedexperts.report.verdict import gain_in_words

COLUMNS = ("base", "mixture", "chosen", "used_by", "gain", "gain_std", "gain_worst", "gain_lose")
HEADERS = ("base, last", "mixture for all", "chosen", "used by", "gain over last", "std", "worst", "lose")
CLAIMED_COLUMNS = ("base_selected", *(f"gain_selected{what}" for what in ("", "_std", "_worst", "_lose", "_misled")))
CLAIMED_HEADERS = ("base, selected", "gain over selected", "std", "worst", "lose", "misled")
EXPLAINED = """\
Each client uses the mixture only where its validation accuracy is then higher than with the base alone.
Gains of what is chosen, in points, with their plain mean and their spread over the clients: over the base's last round,
with which the second phase begins, and over its own selected one, which is what may be claimed.
Misled are those who lose although their validation accuracy is higher than in that round."""
"""Of the table."""


def mixture_of(recipe: Recipe, outcome: Outcome) -> Mixture | None:
    return None if outcome.record is None else analyses.mixture(outcome.record, recipe.by_samples)


def mixture_columns(recipe: Recipe, outcome: Outcome) -> dict[str, object]:
    """For `results.csv`; empty where no modules are pooled, or the base's own run is not at hand."""
    names, found = (*COLUMNS, *CLAIMED_COLUMNS), mixture_of(recipe, outcome)
    if found is None:
        return dict.fromkeys(names)
    accuracies = (f"{100 * recipe.mean_of(figure):.4f}" for figure in (found.base, found.everywhere, found.chosen))
    values = [*accuracies, found.used.sum(), *_spread(found.gains, 4)]
    if (selected := found.selected) is None:
        claimed: list[object] = [None] * len(CLAIMED_COLUMNS)
    else:
        claimed = [f"{100 * recipe.mean_of(selected.base):.4f}", *_spread(selected.gains, 4), selected.misled]
    return dict(zip(names, [*values, *claimed], strict=True))


def mixture_in_words(recipe: Recipe, outcomes: Sequence[Outcome]) -> list[str]:
    """All mixtures together, in a line or two; none if there are none."""
    found = _mixtures(recipe, outcomes)
    if not found:
        return []
    used, gains = np.concatenate([one.used for one in found]), _together([one.gains for one in found])
    everywhere, selected = _together([one.gains_everywhere for one in found]), _selected(found)
    said = (
        f"Mixtures: {used.sum()} of {len(used)} clients of all runs use theirs, as their validation accuracy is higher "
        f"with it, and {gains.worse} of them lose: {gains.points.mean():+.2f} points over the base's last round, mean "
        f"over all clients; {everywhere.points.mean():+.2f} if all used it, and {everywhere.worse} lost."
    )
    if not selected:
        return [said, "Over the base's selected round it is not known: its own run is not at hand."]
    some = f", in the {len(selected)} of {len(found)} runs whose base's own run is at hand" * (
        len(selected) < len(found)
    )
    over = gain_in_words(_together([one.gains for one in selected]), sum(one.misled for one in selected))
    return [said, f"Over the base's selected round, which is what may be claimed{some}: {over}."]


def mixture_table(recipe: Recipe, lines: Sequence[Sequence[Outcome]]) -> Iterator[str]:
    """For `results.md`: a row for each method in a case, over its seeds."""
    rows = []
    for outcomes in lines:
        if not (found := _mixtures(recipe, outcomes)):
            continue
        cell, gains, selected = outcomes[0].cell, _together([one.gains for one in found]), _selected(found)
        figures = zip(*((one.base, one.everywhere, one.chosen) for one in found), strict=True)
        accuracies = [over_seeds([recipe.mean_of(figure) for figure in own]) for own in figures]
        used = f"{sum(int(one.used.sum()) for one in found)} of {len(gains.points)}"
        claimed = ["–"] * len(CLAIMED_HEADERS)
        if len(selected) == len(found):
            base = over_seeds([recipe.mean_of(one.base) for one in selected])
            misled = str(sum(one.misled for one in selected))
            claimed = [base, *_spread(_together([one.gains for one in selected]), 2), misled]
        rows.append([cell.case.name, cell.title, *accuracies, used, *_spread(gains, 2), *claimed])
    if rows:
        yield from EXPLAINED.splitlines()
        yield ""
        headers = (*HEADERS, *CLAIMED_HEADERS)
        yield f"| case | method | {' | '.join(headers)} |"
        yield "|---|---|" + "--:|" * len(headers)
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""


def _mixtures(recipe: Recipe, outcomes: Sequence[Outcome]) -> list[Mixture]:
    return [found for outcome in outcomes if (found := mixture_of(recipe, outcome)) is not None]


def _selected(found: Sequence[Mixture]) -> list[Selected]:
    """Of those whose base's own run is at hand."""
    return [one.selected for one in found if one.selected is not None]


def _together(gains: Sequence[Difference]) -> Difference:
    return Difference(np.concatenate([own.points for own in gains]))


def _spread(gains: Difference, digits: int) -> list[str]:
    """As in a table: mean, standard deviation, the worst, and how many lose."""
    points = gains.points
    return [
        f"{points.mean():+.{digits}f}",
        f"{points.std():.{digits}f}",
        f"{points.min():+.{digits}f}",
        str(gains.worse),
    ]
