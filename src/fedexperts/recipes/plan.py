"""What a recipe asks for, run by run: with which settings, in which folder, and how much smaller than the paper's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import Field
from scipy.stats import gamma

from fedexperts import api
from fedexperts.config import Frozen, NamesInTurn, Seeds, Settings
from fedexperts.data import MIN_SAMPLES
from fedexperts.data.registry import find
from fedexperts.errors import SettingsError
from fedexperts.methods import registry
from fedexperts.recipes.recipe import Case, Recipe, Values, naming

RUNS = "runs"
FEW_SAMPLES = 60
"""What a client has at least in a scaled run, so that its test score means anything."""
LUCK = 0.01
"""How likely a draw of an uneven partition must be good: it is repeated up to a thousand times."""


class Choice(Frozen):
    """Which of a recipe's runs are wanted now."""

    only: NamesInTurn | None = None
    case: str = ""
    seeds: Seeds | None = None

    def wants(self, case: Case, method: str) -> bool:
        return self.case.lower() in case.name.lower() and (self.only is None or method in self.only)


class Reduction(Frozen):
    """How a run is made smaller than the paper's."""

    scale: float = Field(1.0, gt=0, le=1, description="so much of the rounds and of the samples")
    rounds: int | None = Field(None, ge=1, description="rounds of every run (default: the recipe's)")

    def __str__(self) -> str:
        """What every output of such a run must say; nothing for the paper's own size."""
        parts = [f"scale {self.scale:g} of the rounds and, as far as the clients allow, samples"] * (self.scale < 1)
        parts += [f"{self.rounds} rounds"] * (self.rounds is not None)
        return f"NOT AS PUBLISHED: {'; '.join(parts)}" if parts else ""

    @property
    def suffix(self) -> str:
        """Keeps runs of different sizes in different folders."""
        parts = [f"-scale-{self.scale:g}"] * (self.scale < 1) + [f"-rounds-{self.rounds}"] * (self.rounds is not None)
        return "".join(parts)

    def of(self, settings: Settings) -> Settings:
        """The settings, as much smaller; a client keeps enough data, and a run is looked at twice at least."""
        if self.scale == 1 and self.rounds is None:
            return settings
        rounds = self.rounds or max(2, round(self.scale * settings.rounds))
        every = min(settings.evaluate_every, max(1, rounds // 2))
        smaller: dict[str, Any] = {"rounds": rounds, "evaluate_every": every}
        each, fixed = least_samples(settings), settings.samples_per_client
        if self.scale == 1:
            pass
        elif fixed is not None:
            smaller["samples_per_client"] = min(fixed, max(each, round(self.scale * fixed)))
        else:
            whole = settings.samples or find(settings.data).samples
            smaller["samples"] = min(whole, max(each * settings.clients, round(self.scale * whole)))
        return settings.model_copy(update=smaller)


def least_samples(settings: Settings) -> int:
    """How many samples per client let every one have `MIN_SAMPLES` and two of each of its classes.

    With Dirichlet(α) shares of K classes a client's part follows Gamma(Kα), nearly: the mean must be so large that
    with a chance of `LUCK` none of the N clients falls below the minimum. Classes that nobody has are lost.
    """
    pathological, all_classes = settings.partition == "pathological", find(settings.data).classes
    classes = settings.classes_per_client if pathological else all_classes
    least = max(FEW_SAMPLES, 2 * classes * pathological)
    uneven = settings.partition == "dirichlet" or (pathological and not settings.balanced)
    if uneven and settings.samples_per_client is None:
        shape = classes * settings.alpha
        lowest = gamma.ppf(1 - LUCK ** (1 / settings.clients), shape) / shape
        least = max(least, ceil(MIN_SAMPLES / max(lowest, 1e-9)))
    return ceil(least * max(1, all_classes / (settings.clients * classes)))


@dataclass(frozen=True, eq=False)
class Cell:
    """One run: a method in a case with a seed."""

    case: Case
    settings: Settings
    folder: Path
    wanted: bool  # else it is shown if it is there, but not run

    @property
    def method(self) -> str:
        return self.settings.method

    @property
    def title(self) -> str:
        return registry()[self.method].title or self.method

    @property
    def name(self) -> str:
        return f"{self.case.name} · {self.title} · seed {self.settings.seed}"


def plan(
    recipe: Recipe, out: Path, choice: Choice, reduction: Reduction, values: Mapping[str, Any] | None = None
) -> list[Cell]:
    """All runs of a recipe, those of one task together; `values` are settings of where and how to compute."""
    _check_choice(recipe, choice)
    with naming(recipe.path):
        cells = list(_cells(recipe, out, choice, reduction, dict(values or {})))
    if not any(cell.wanted for cell in cells):
        raise SettingsError(f"no case of recipe {recipe.name} with '{choice.case}' in its name has a method of --only")
    return cells


def _cells(recipe: Recipe, out: Path, choice: Choice, reduction: Reduction, values: Values) -> Iterator[Cell]:
    for case in recipe.cases:
        for seed in choice.seeds or recipe.seeds_of(case):
            for method, own in recipe.methods_of(case).items():
                wanted = choice.wants(case, method)
                given = recipe.settings | case.settings | own | values | {"seed": seed}
                settings = reduction.of(api.settings_for(method, given))
                yield Cell(case, settings, out / RUNS / case.folder / f"{method}-seed{seed}", wanted)


def _check_choice(recipe: Recipe, choice: Choice) -> None:
    methods = dict.fromkeys(method for case in recipe.cases for method in recipe.methods_of(case))
    for method in choice.only or ():
        if method not in methods:
            raise SettingsError(f"recipe {recipe.name} has no method '{method}'; it has {', '.join(methods)}")
    if not any(choice.case.lower() in case.name.lower() for case in recipe.cases):
        names = "; ".join(case.name for case in recipe.cases)
        raise SettingsError(f"no case of recipe {recipe.name} has '{choice.case}' in its name; there are: {names}")
