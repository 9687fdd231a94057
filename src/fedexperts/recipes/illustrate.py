"""What a recipe shows: a page per case, drawn from the runs' folders, or one page for a figure over all cases."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedexperts import analyses, api
from fedexperts.engine import Simulation
from fedexperts.errors import SavedStateError
from fedexperts.measure import STATE, Record
from fedexperts.methods.standalone import Standalone
from fedexperts.recipes.plan import Reduction
from fedexperts.recipes.recipe import Case, Recipe
from fedexperts.recipes.reproduce import Outcome
from fedexperts.recipes.results import Line, by_case
from fedexperts.report import peer_sections, sections, tree_sections
from fedexperts.report.page import write_analysis, write_page
from fedexperts.report.runs import line_up
from fedexperts.report.section import Section

SHOWN = 10
"""Clients in a t-SNE plane."""


def illustrate(recipe: Recipe, outcomes: Sequence[Outcome], reduction: Reduction, folder: Path) -> Iterator[str]:
    """Write the pages, and say what each found."""
    sweep = recipe.shows == "sweep"  # its lines are named by what they differ in, whatever the labels of their points
    cases = {case.name: (case, _records(lines, reduction, not sweep)) for case, lines in by_case(outcomes)}
    if sweep:
        for data in dict.fromkeys(r.settings.data for _, records in cases.values() for r in records):
            own = [r for _, records in cases.values() for r in records if r.settings.data == data]
            section = sections.sweep(own, recipe.over, recipe.published_as, recipe.axis, recipe.by_samples)
            yield from _draw(own, [section], folder / f"{data}.html")
        return
    for case, records in cases.values():
        if records and recipe.shows == "table":
            write_page(records, folder / f"{case.folder}.html")
        elif records:
            yield from _draw(records, list(_sections(recipe, case, records)), folder / f"{case.folder}.html")


def _records(lines: Sequence[Line], reduction: Reduction, labelled: bool) -> list[Record]:
    """The runs of a case; each says how it is not as published, and what came of those that have no record."""
    lost = [str(outcome) for line in lines for outcome in line.outcomes if outcome.record is None]
    said = [*filter(None, [str(reduction)]), *lost]
    return [
        replace(
            outcome.record,
            title=outcome.cell.title if labelled else outcome.record.title,
            notes=[*said, *outcome.record.notes],
        )
        for line in lines
        for outcome in line.outcomes
        if outcome.record is not None
    ]


def _sections(recipe: Recipe, case: Case, records: Sequence[Record]) -> Iterator[Section]:
    """The figure that the recipe asks for, of the runs of one case."""
    if recipe.shows == "convergence":
        yield sections.convergence(records, recipe.by_samples)
    elif recipe.shows == "cost":
        yield sections.cost(records, None if case.target is None else 100 * case.target)
    elif recipe.shows == "traffic":
        yield peer_sections.traffic(records)
    elif recipe.shows == "clients":
        *others, last = [record for record in records if record.settings.method != Standalone.name]
        for other in others:
            yield sections.clients(last, other, recipe.published_as)
    elif recipe.shows == "spectra":
        for run in line_up(records):
            yield from tree_sections.spectra(run.record, run.name)
    else:
        for record in records:
            if recipe.shows == "gates":
                _ask(record, analyses.GATES, analyses.gate_weights)
                yield from sections.gates(record)
            else:
                first = range(min(SHOWN, record.settings.clients))
                _ask(record, analyses.REPRESENTATIONS, partial(analyses.embed, clients=first))
                yield from sections.representations(record)


def _ask(record: Record, file: str, question: Callable[[Simulation], analyses.SampleTable]) -> None:
    """Let the run's models answer, unless they have already."""
    assert record.folder is not None  # a recipe's runs lie in folders
    if (record.folder / file).exists():
        return
    if not (record.folder / STATE).exists():
        raise SavedStateError(
            f"the models of {record.folder} were dropped, and this figure asks them; remove that folder and run the "
            "recipe again without --drop-models"
        )
    question(api.load(record.folder, record.settings.data_dir).simulation).save(record.folder / file)


def _draw(records: Sequence[Record], found: Sequence[Section], path: Path) -> Iterator[str]:
    write_analysis(records, found, path)
    yield from (f"{section.heading}: {section.finding}" for section in found if section.finding)
