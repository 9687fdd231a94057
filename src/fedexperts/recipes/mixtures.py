"""What PM-MoE's mixtures are worth in the runs of a recipe, where every client chooses on validation data."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedexperts import analyses
from fedexperts.analyses import Mixture
from fedexperts.recipes.recipe import Recipe
from fedexperts.recipes.reproduce import Outcome
from fedexperts.report.table import over_seeds

COLUMNS = ("base", "mixture", "chosen")
HEADERS = ("base alone", "mixture for all", "chosen", "used by", "gain", "std", "worst", "lose")


def mixture_of(recipe: Recipe, outcome: Outcome) -> Mixture | None:
    return None if outcome.record is None else analyses.mixture(outcome.record, recipe.by_samples)


def mixture_columns(recipe: Recipe, outcome: Outcome) -> dict[str, object]:
    """For `results.csv`; empty where no modules are pooled."""
    found = mixture_of(recipe, outcome)
    if found is None:
        return dict.fromkeys((*COLUMNS, "used_by"))
    figures = zip(COLUMNS, (found.base, found.everywhere, found.chosen), strict=True)
    return {name: f"{100 * recipe.mean_of(figure):.4f}" for name, figure in figures} | {"used_by": found.used.sum()}


def mixture_in_words(recipe: Recipe, outcomes: Sequence[Outcome]) -> list[str]:
    """All mixtures together, in a line; none if there are none."""
    found = [mixture for outcome in outcomes if (mixture := mixture_of(recipe, outcome)) is not None]
    if not found:
        return []
    used = np.concatenate([one.used for one in found])
    gains, everywhere = (
        np.concatenate([gain.points for gain in both])
        for both in ([one.gains for one in found], [one.gains_everywhere for one in found])
    )
    return [
        f"Mixtures: {used.sum()} of {len(used)} clients of all runs use theirs, as their validation accuracy is higher "
        f"with it, and {(gains < 0).sum()} of them lose: {gains.mean():+.2f} points over the base alone, mean over "
        f"all clients; {everywhere.mean():+.2f} if all used it, and {(everywhere < 0).sum()} lost."
    ]


def mixture_table(recipe: Recipe, lines: Sequence[Sequence[Outcome]]) -> Iterator[str]:
    """For `results.md`: a row for each method in a case, over its seeds."""
    rows = []
    for outcomes in lines:
        found = [mixture for outcome in outcomes if (mixture := mixture_of(recipe, outcome)) is not None]
        if not found:
            continue
        cell, gains = outcomes[0].cell, np.concatenate([one.gains.points for one in found])
        figures = zip(*((one.base, one.everywhere, one.chosen) for one in found), strict=True)
        accuracies = [over_seeds([recipe.mean_of(figure) for figure in own]) for own in figures]
        used = f"{sum(int(one.used.sum()) for one in found)} of {len(gains)}"
        spread = [f"{gains.mean():+.2f}", f"{gains.std():.2f}", f"{gains.min():+.2f}", str((gains < 0).sum())]
        rows.append([cell.case.name, cell.title, *accuracies, used, *spread])
    if rows:
        yield "Each client uses the mixture only where its validation accuracy is then higher than with the base alone."
        yield "The gain is over the base, in points, with its plain mean and its spread over the clients."
        yield ""
        yield f"| case | method | {' | '.join(HEADERS)} |"
        yield "|---|---|" + "--:|" * len(HEADERS)
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""
