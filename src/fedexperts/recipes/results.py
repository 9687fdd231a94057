"""What came of a recipe: measured beside published, as a table, as files, and as pages."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from rich import box
from rich.table import Table
from rich.text import Text

from fedexperts.files import write_atomically
from fedexperts.measure import MEANING, Kind, Record
from fedexperts.methods import Channel
from fedexperts.methods.standalone import Standalone
from fedexperts.recipes.mixtures import mixture_columns, mixture_in_words, mixture_of, mixture_table
from fedexperts.recipes.plan import Reduction
from fedexperts.recipes.recipe import CLAIMED, FAILED, Case, Recipe
from fedexperts.recipes.reproduce import Outcome
from fedexperts.report.table import notes, over_seeds

NOTHING = "–"


@dataclass(frozen=True)
class Line:
    """A method in a case, over all its seeds."""

    case: Case
    outcomes: list[Outcome]
    alone: dict[int, Record]  # the case's Standalone runs by seed

    @property
    def records(self) -> list[Record]:
        return [outcome.record for outcome in self.outcomes if outcome.record is not None]

    @property
    def published(self) -> float | str | None:
        return self.case.published.get(self.outcomes[0].cell.label)

    def cells(self, recipe: Recipe) -> list[str]:
        """As in `headers`."""
        title, lost = self.outcomes[0].cell.title, len(self.outcomes) - len(self.records)
        if not self.records:
            figures = ["diverged"] * len(MEANING)
        else:
            figures = [over_seeds([recipe.accuracy(record, kind) for record in self.records]) for kind in MEANING]
            title += f" ({lost} of {len(self.outcomes)} diverged)" * (lost > 0)
        compared = [_shown(self.published), *(self._difference(recipe, kind) for kind in recipe.compared)]
        return [title, *figures, *(compared if recipe.compared else []), self._gain(recipe)]

    def _difference(self, recipe: Recipe, kind: Kind) -> str:
        if not self.records or not isinstance(self.published, float):
            return NOTHING
        return _signed(mean(100 * recipe.accuracy(record, kind) for record in self.records) - self.published)

    def _gain(self, recipe: Recipe) -> str:
        """Over Standalone with the same seed."""
        pairs = [(record, self.alone[seed]) for record in self.records if (seed := record.settings.seed) in self.alone]
        if not pairs or self.outcomes[0].cell.method == Standalone.name:
            return NOTHING
        gains = [recipe.accuracy(own, CLAIMED) - recipe.accuracy(alone, CLAIMED) for own, alone in pairs]
        return _signed(100 * mean(gains))


def headers(recipe: Recipe) -> list[str]:
    """Of the table, with a line break where a column is narrow."""
    published = [f"published\n({recipe.published_as})"] if recipe.compared else []
    return ["", *MEANING, *published, *(f"{kind}\n− publ." for kind in recipe.compared), "gain"]


def results_table(recipe: Recipe, outcomes: Sequence[Outcome], reduction: Reduction) -> Table:
    """For a terminal of 100 columns: a line per method, under a line per case."""
    said = explanation(recipe, outcomes)
    table = Table(
        title=Text("\n".join(filter(None, [f"{recipe.name}: {recipe.title}", str(reduction)])), style="bold"),
        title_justify="left",
        caption=Text("\n".join(["", *said])),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        min_width=90,  # a caption is folded at the table's width
    )
    for header in headers(recipe):
        style = "bold" if header == recipe.published_as else ""
        table.add_column(header, justify="right" if header else "left", style=style, overflow="fold")
    for case, lines in by_case(outcomes):
        table.add_row(Text(case.name, style="bold"))
        for line in lines:
            title, *cells = line.cells(recipe)
            table.add_row(Text(f"  {title}"), *map(Text, cells))
        table.add_section()
    return table


def explanation(recipe: Recipe, outcomes: Sequence[Outcome]) -> list[str]:
    """What the table shows and what the paper says, a line each."""
    seeds = sorted({outcome.cell.settings.seed for outcome in outcomes})
    several = ", and over the seeds with their standard deviation" * (len(seeds) > 1)
    lines = [f"{len(outcomes)} runs; the recipe has {recipe.runs}."] * (len(outcomes) != recipe.runs)
    over = "clients, weighted by their test samples" if recipe.by_samples else "clients"
    lines.append(f"Test accuracy in %, mean over {over}{several}. Seeds: {', '.join(map(str, seeds))}.")
    lines += [f"{kind} = {meaning}" for kind, meaning in MEANING.items()]
    if recipe.published:
        lines.append(f"published = in {recipe.source}, which prints the {recipe.published_as}; differences in points")
    if FAILED in recipe.published:
        lines.append("failed = the paper prints '-': it did not converge")
    lines.append(f"gain = {CLAIMED} over Standalone's with the same seed, in points")
    lines += [f"The paper says: {claim}" for claim in recipe.claims]
    lines += [*mixture_in_words(recipe, outcomes), *(str(outcome) for outcome in outcomes if outcome.record is None)]
    return lines + notes([outcome.record for outcome in outcomes if outcome.record is not None])


def write_results(
    recipe: Recipe, outcomes: Sequence[Outcome], reduction: Reduction, folder: Path, command: str
) -> None:
    """`results.csv`, a row per run, and `results.md`, the table as it can stand in a document."""
    folder.mkdir(parents=True, exist_ok=True)
    pooled = any(mixture_of(recipe, outcome) for outcome in outcomes)
    rows = [
        _row(recipe, outcome, reduction) | (mixture_columns(recipe, outcome) if pooled else {}) for outcome in outcomes
    ]
    with open(folder / "results.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    write_atomically(folder / "results.md", "\n".join(_markdown(recipe, outcomes, reduction, command)) + "\n")


def by_case(outcomes: Sequence[Outcome]) -> Iterator[tuple[Case, list[Line]]]:
    """The outcomes case by case, and in each method by method."""
    cases = {outcome.cell.case.name: outcome.cell.case for outcome in outcomes}
    for name, case in cases.items():
        own = [outcome for outcome in outcomes if outcome.cell.case.name == name]
        alone = {
            outcome.cell.settings.seed: outcome.record
            for outcome in own
            if outcome.record is not None and outcome.cell.method == Standalone.name
        }
        labels = dict.fromkeys(outcome.cell.label for outcome in own)
        yield case, [Line(case, [o for o in own if o.cell.label == label], alone) for label in labels]


def _row(recipe: Recipe, outcome: Outcome, reduction: Reduction) -> dict[str, object]:
    cell, record = outcome.cell, outcome.record
    return {
        "recipe": recipe.name,
        "case": cell.case.name,
        "x": cell.case.x,
        "method": cell.method,
        "label": cell.label,
        "seed": cell.settings.seed,
        **{kind: f"{100 * recipe.accuracy(record, kind):.4f}" if record else "diverged" for kind in MEANING},
        "mean_over": recipe.published_mean,
        "published": cell.case.published.get(cell.label),
        "published_as": recipe.published_as,
        "rounds": cell.settings.rounds,
        "samples": cell.settings.samples,
        **{f"{channel}_bytes": record and record.totals[f"{channel}_bytes"] for channel in Channel},
        "flops": record and record.totals["flops"],
        "seconds": record and f"{record.seconds:.2f}",
        "not_as_published": str(reduction),
        "folder": cell.folder,
    }


def _markdown(recipe: Recipe, outcomes: Sequence[Outcome], reduction: Reduction, command: str) -> Iterator[str]:
    yield f"# {recipe.name}: {recipe.title}"
    yield ""
    if str(reduction):
        yield f"**{reduction}**"
        yield ""
    first, *others = [header.replace("\n", " ") for header in headers(recipe)]
    yield f"| case | {first or 'method'} | {' | '.join(others)} |"
    yield "|---|---|" + "--:|" * len(others)
    for case, lines in by_case(outcomes):
        for line in lines:
            yield f"| {case.name} | {' | '.join(line.cells(recipe))} |"
    yield ""
    yield from mixture_table(recipe, [line.outcomes for _, lines in by_case(outcomes) for line in lines])
    yield from (f"- {line}" for line in explanation(recipe, outcomes))
    records = [outcome.record for outcome in outcomes if outcome.record is not None]
    for fact in ("fedexperts", "commit", "torch", "device"):
        if values := dict.fromkeys(record.environment[fact] for record in records if fact in record.environment):
            yield f"- {fact}: {', '.join(values)}"
    yield ""
    yield "Made by:"
    yield ""
    yield f"    {command}"


def _shown(published: float | str | None) -> str:
    if published is None:
        return NOTHING
    return "failed" if isinstance(published, str) else f"{published:.2f}"


def _signed(points: float) -> str:
    return f"{round(points, 2) + 0.0:+.2f}"  # + 0.0: never "-0.00"
