"""What a recipe asks for, run by run: with which settings, in which folder, and how much smaller than the paper's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import Field
from scipy.stats import gamma

from fedexperts import api
from fedexperts.config import SCHEDULE, Frozen, NamesInTurn, Seeds, Settings, TaskSettings, TrainSettings
from fedexperts.data import MIN_SAMPLES
from fedexperts.data.registry import find
from fedexperts.errors import SettingsError, suggestion
from fedexperts.methods import method_class, registry
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

    def wants(self, case: Case, label: str) -> bool:
        return self.case.lower() in case.name.lower() and (self.only is None or label in self.only)


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
        """The settings, as much smaller; a client keeps enough data, and a run is looked at twice at least.

        A method's options that mean a part of the run (`config.Rounds`) keep their part of it.
        """
        if self.scale == 1 and self.rounds is None:
            return settings
        rounds = self.rounds or max(2, round(self.scale * settings.rounds))
        every = min(settings.evaluate_every, max(1, rounds // 2))
        smaller: dict[str, Any] = {"rounds": rounds, "evaluate_every": every}
        if paced := _schedule(settings):
            part = rounds / settings.rounds
            smaller["options"] = settings.options | {name: max(1, round(part * n)) for name, n in paced.items()}
        each, fixed = least_samples(settings), settings.samples_per_client
        if self.scale == 1:
            pass
        elif fixed is not None:
            smaller["samples_per_client"] = min(fixed, max(each, round(self.scale * fixed)))
        else:
            whole = settings.samples or find(settings.data).samples
            smaller["samples"] = min(whole, max(each * settings.clients, round(self.scale * whole)))
        return settings.model_copy(update=smaller)


def _schedule(settings: Settings) -> dict[str, int]:
    """The method's options that mean a part of the run."""
    fields = method_class(settings.method).Options.model_fields
    return {name: value for name, value in settings.options.items() if SCHEDULE in fields[name].metadata}


def least_samples(settings: Settings) -> int:
    """How many samples per client let every one have `MIN_SAMPLES` and two of each of its classes.

    With Dirichlet(α) shares of K classes a client's part follows Gamma(Kα), nearly: the mean must be so large that
    with a chance of `LUCK` none of the N clients falls below the minimum. What is spread evenly is sure. Classes that
    nobody has are lost.
    """
    pathological, all_classes = settings.partition == "pathological", find(settings.data).classes
    classes = settings.classes_per_client if pathological else all_classes
    least = max(FEW_SAMPLES, 2 * classes * pathological)
    even = {"dirichlet": 0.0, "dirichlet-shared": settings.shared_ratio, "pathological": float(settings.balanced)}
    evenly = even.get(settings.partition, 1.0)
    if evenly < 1 and settings.samples_per_client is None:
        shape = classes * settings.alpha
        lowest = evenly + (1 - evenly) * gamma.ppf(1 - LUCK ** (1 / settings.clients), shape) / shape
        least = max(least, ceil(MIN_SAMPLES / max(lowest, 1e-9)))
    return ceil(least * max(1, all_classes / (settings.clients * classes)))


@dataclass(frozen=True)
class Cell:
    """One run: a method in a case with a seed. What lies in the same folder is the same run, whoever shows it."""

    case: Case = field(compare=False)
    label: str = field(compare=False)  # the method's name, or what the recipe calls it with these settings
    settings: Settings = field(compare=False)
    folder: Path
    wanted: bool = field(compare=False)  # else it is shown if it is there, and run only if another one begins with it
    needs: tuple["Cell", ...] = field(default=(), compare=False)  # the runs that it begins with

    @property
    def method(self) -> str:
        return self.settings.method

    @property
    def title(self) -> str:
        title = registry()[self.method].title or self.method
        return title if self.label == self.method else f"{title} ({self.label})"

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
            given = recipe.settings | case.settings, values | {"seed": seed}
            wanted = {label for label in recipe.methods_of(case) if choice.wants(case, label)}
            runs = _Runs(case, recipe.methods_of(case), wanted, *given, out / RUNS / case.folder, reduction)
            yield from map(runs.cell, recipe.methods_of(case))


@dataclass(frozen=True)
class _Runs:
    """The runs of a case with one seed, each planned when it is asked for: by the recipe or by one that needs it."""

    case: Case
    methods: Mapping[str, Values]
    wanted: set[str]
    before: Values  # settings that a method's own go before
    after: Values  # settings that go before those
    folder: Path
    reduction: Reduction
    made: dict[str, Cell] = field(default_factory=dict)

    def cell(self, label: str, above: tuple[str, ...] = ()) -> Cell:
        """`above` are the runs that begin with it, one with another."""
        if label in above:
            raise SettingsError(f"case '{self.case.name}': runs begin with each other: {' → '.join([*above, label])}")
        if label not in self.made:
            own = dict(self.methods.get(label, {}))
            method = own.pop("method", label)
            if label in registry() and method != label:
                raise SettingsError(f"'{label}' is a method; call {method} with these settings something else")
            given = self.before | own | self.after
            given = {name: value for name, value in given.items() if name == method or name not in registry()}
            if goes_on := method_class(method).goes_on_from in own:
                given = self._of_its_own(given, own)
            needs: dict[str, Cell] = {}
            placed = self._placed(given, needs, (*above, label))
            planned = {need.folder: need.settings for need in needs.values()}
            settings = api.settings_for(method, placed, planned)
            self.made[label] = Cell(
                case=self.case,
                label=label,
                settings=settings if goes_on else self.reduction.of(settings),
                folder=self.folder / f"{label}-seed{settings.seed}",
                wanted=label in self.wanted,
                needs=tuple(needs.values()),
            )
        return self.made[label]

    def _of_its_own(self, given: Values, own: Values) -> Values:
        """What of the settings is about a run that goes on from another, which has the rest from there.

        It is as much smaller as that one is, and it is looked at as it says itself: it is a short one.
        """
        there = {*TaskSettings.model_fields, *TrainSettings.model_fields, "evaluate_every"} - {*own, *self.after}
        return {name: value for name, value in given.items() if name not in there}

    def _placed(self, values: Values, needs: dict[str, Cell], above: tuple[str, ...]) -> Values:
        """The settings with a folder in place of each `{ run = LABEL }`; `needs` takes up the runs there."""
        placed = dict(values)
        for name, value in values.items():
            if isinstance(value, dict) and value.keys() == {"run"}:
                label, known = value["run"], [*self.methods, *registry()]
                if label not in known:
                    raise SettingsError(
                        f"case '{self.case.name}': {name} of {above[-1]} is the run {label!r}, which is neither in the "
                        f"recipe nor a method{suggestion(str(label), known)}"
                    )
                needs[label] = self.cell(label, above)
                placed[name] = needs[label].folder
            elif isinstance(value, dict):
                placed[name] = self._placed(value, needs, above)
        return placed


def _check_choice(recipe: Recipe, choice: Choice) -> None:
    labels = dict.fromkeys(label for case in recipe.cases for label in recipe.methods_of(case))
    for label in choice.only or ():
        if label not in labels:
            raise SettingsError(f"recipe {recipe.name} has no method '{label}'; it has {', '.join(labels)}")
    if not any(choice.case.lower() in case.name.lower() for case in recipe.cases):
        names = "; ".join(case.name for case in recipe.cases)
        raise SettingsError(f"no case of recipe {recipe.name} has '{choice.case}' in its name; there are: {names}")
