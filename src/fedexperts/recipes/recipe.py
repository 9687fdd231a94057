"""A recipe: a table or figure of a paper, complete enough to make it again, with the paper's own figures."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from fedexperts.config import Frozen, Seeds, read_toml
from fedexperts.errors import DataError, MethodError, SettingsError, suggestion
from fedexperts.measure import Figure, Kind, Record

FAILED = "-"
"""What a paper prints where a method did not converge."""
CLAIMED: Kind = "selected"
"""The figure for claims of our own."""
INHERITED = ("settings", "published_as", "published_mean", "methods", "seeds")
"""What a recipe takes from its base. Cases and claims are always its own."""
CLIENTS_ALIKE = ("clients", "cost", "traffic")
"""Figures with means, or rounds chosen by them, in which all clients always count alike."""
HOME = Path(__file__).parent
Mean = Literal["clients", "samples"]
Values = dict[str, Any]


def _without_own(methods: Any) -> Any:
    """Names alone are methods without settings of their own."""
    return {name: {} for name in methods} if isinstance(methods, list) else methods


def _no_seed_or_method(values: Values) -> Values:
    for name, place in {"seed": "seeds", "method": "methods"}.items():
        if name in values:
            raise ValueError(f"'{name}' does not belong to the settings; name all in '{place}'")
    return values


def _names_of_folders(methods: dict[str, Values]) -> dict[str, Values]:
    for label in methods:
        if not re.fullmatch(r"[\w.+-]+", label):
            raise ValueError(f"'{label}' names a folder too: letters, digits and - _ + . only")
    return methods


Methods = Annotated[
    dict[str, Values], BeforeValidator(_without_own), AfterValidator(_names_of_folders), Field(min_length=1)
]
"""Label → settings; the label is a method's name, or any, and then `method` among the settings says which."""


class Case(Frozen):
    """A column of a table or a point on a figure's axis; what it sets goes before what the recipe sets."""

    name: str = Field(min_length=1, description="recipes of one paper share the runs of cases of the same name")
    x: float | None = Field(None, description="its place on the figure's axis")
    target: float | None = Field(None, gt=0, lt=1, description="mean accuracy until which rounds and costs are counted")
    settings: Values = Field(default_factory=dict, description="any field of the settings, and methods' own options")
    methods: Methods | None = Field(None, description="methods, if not the recipe's")
    also: Methods | None = Field(None, description="methods beside those")
    seeds: Seeds | None = Field(None, description="seeds, if not the recipe's")
    published: dict[str, float | Literal["-"]] = Field(
        default_factory=dict, description="the paper's figure by method, in %; '-' = it did not converge"
    )

    _settings = field_validator("settings")(_no_seed_or_method)

    @property
    def folder(self) -> str:
        """Its name as a name of a folder."""
        return re.sub(r"[^\w.]+", "-", self.name.lower()).strip("-")


class Recipe(Frozen):
    """A table or figure. Build it with `read`."""

    name: str = Field(description="paper/table, from the place of the file")
    path: Path
    title: str = Field(description="what is shown")
    source: str = Field(description="whose table or figure it is")
    base: str | None = Field(
        None,
        description="another recipe, or its path from this one's folder: its settings, which this one changes, and its "
        "published_as, published_mean, methods and seeds where this one has none",
    )
    shows: Literal["table", "clients", "tsne", "cost", "sweep", "gates", "convergence", "traffic", "spectra"] = Field(
        "table", description="how it is shown: a table, or the figure of that analysis"
    )
    axis: str = Field("", description="what the cases' x is")
    over: str | None = Field(None, description="the setting that is swept, where runs differ in several")
    published_as: Kind = Field("peak", description="which of our three figures the paper prints")
    published_mean: Mean = Field("clients", description="whether all clients count alike in it, or all samples")
    claims: tuple[str, ...] = Field((), description="what the paper says about it in words")
    settings: Values = Field(default_factory=dict, description="as in a case, for all of them")
    methods: Methods = Field(description="names, or a table of labels with settings and options of their own")
    seeds: Seeds = Field((0,), description="every method runs once with each")
    cases: tuple[Case, ...] = Field(min_length=1)

    _settings = field_validator("settings")(_no_seed_or_method)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.by_samples and self.shows in CLIENTS_ALIKE:
            raise ValueError(
                f"in a figure of '{self.shows}' all clients count alike, and tables, sweeps and curves alone can count "
                'samples: give published_mean = "clients"'
            )
        folders = [case.folder for case in self.cases]
        for case in self.cases:
            if folders.count(case.folder) > 1:
                raise ValueError(f"two cases are called '{case.name}', or nearly; runs of both would share a folder")
            for method in case.published:
                if method not in (known := self.methods_of(case)):
                    raise ValueError(
                        f"case '{case.name}' has a published figure of '{method}', which is none of its methods"
                        f"{suggestion(method, known)}"
                    )
        return self

    def methods_of(self, case: Case) -> dict[str, Values]:
        """Labels and settings of their own."""
        return (case.methods or self.methods) | (case.also or {})

    def seeds_of(self, case: Case) -> tuple[int, ...]:
        return case.seeds or self.seeds

    @property
    def published(self) -> set[float | str]:
        """All that the paper prints of it."""
        return {value for case in self.cases for value in case.published.values()}

    @property
    def compared(self) -> list[Kind]:
        """Our figures that are set against the paper's: the one that it prints, and the one that we claim."""
        return list(dict.fromkeys([self.published_as, CLAIMED])) if self.published else []

    @property
    def by_samples(self) -> bool:
        """Whether all samples count alike, in means and in the choice of a round."""
        return self.published_mean == "samples"

    def accuracy(self, record: Record, kind: Kind) -> float:
        """Of a run, in the round that is meant if clients count as in the paper."""
        return record.accuracy(kind, self.by_samples)

    def mean_of(self, figure: Figure) -> float:
        """Over clients, as the paper takes it."""
        return figure.over(self.by_samples)

    @property
    def runs(self) -> int:
        return sum(len(self.methods_of(case)) * len(self.seeds_of(case)) for case in self.cases)


def shipped() -> dict[str, Path]:
    """The recipes that come with the package: `paper/table` → file, in the order of their names and numbers."""
    found = {f"{path.parent.name}/{path.stem}": path for path in HOME.glob("*/*.toml")}
    pieces = {name: re.split(r"(\d+)", name) for name in found}
    order = sorted(found, key=lambda name: [int(piece) if piece.isdigit() else piece for piece in pieces[name]])
    return {name: found[name] for name in order}


def read(name: str) -> Recipe:
    """The recipe of that name (`fedmoe/table3`), or in a file of one's own (`mine.toml`)."""
    return _read(name, Path(), ())


def _read(name: str, folder: Path, above: tuple[Path, ...]) -> Recipe:
    """The recipe of that name, or in that file as seen from the folder; `above` are those that it is a base of."""
    known = shipped()
    if name not in known and not name.endswith(".toml"):
        raise SettingsError(
            f"unknown recipe '{name}'{suggestion(name, known)}; `fedexperts reproduce` lists them, "
            "and a recipe of your own is a file that ends in .toml"
        )
    path = known.get(name) or folder / name
    chain = (*above, path.resolve())
    if chain[-1] in above:
        raise SettingsError(f"bases go in a circle: {' → '.join(file.name for file in chain)}")
    values = read_toml(path)
    with naming(path):
        if isinstance(values.get("base"), str):
            values = _changed(_read(values["base"], path.parent, chain), values)
        cases = values.get("cases")
        if isinstance(cases, list):  # each by itself, so that an error says in which
            values["cases"] = [_case(number, case) for number, case in enumerate(cases, start=1)]
        for place in ("name", "path"):
            if place in values:
                raise SettingsError(f"unknown setting '{place}'; a recipe is called as its file is")
        return Recipe.check(values | {"name": name if name in known else path.stem, "path": path})


def _changed(base: Recipe, values: Values) -> Values:
    """What the base has, changed by these values: settings one by one, the rest as a whole."""
    settings = values.get("settings", {})
    both = {"settings": base.settings | settings} if isinstance(settings, dict) else {}
    return {name: getattr(base, name) for name in INHERITED} | values | both


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors within the block say that they are about this recipe."""
    try:
        yield
    except (SettingsError, MethodError, DataError) as error:
        raise SettingsError(f"recipe {path}: {error}") from None


def _case(number: int, values: Any) -> Case:
    if not isinstance(values, dict):
        raise SettingsError(f"case {number} must be a table, not {values!r}")
    try:
        return Case.check(values)
    except SettingsError as error:
        raise SettingsError(f"case {values.get('name', number)!r}: {error}") from None
