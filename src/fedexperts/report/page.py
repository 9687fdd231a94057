"""The page about runs: one HTML file that needs nothing else and opens with a double click."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from fedexperts.files import write_atomically
from fedexperts.measure import SETTINGS, Record
from fedexperts.report import chapters
from fedexperts.report.facts import facts, title
from fedexperts.report.figures import label_picture
from fedexperts.report.latex import latex_table
from fedexperts.report.picker import picker
from fedexperts.report.pieces import Pieces, definitions, fold, lines, prose, table
from fedexperts.report.runs import Run, line_up, ranked
from fedexperts.report.section import Section
from fedexperts.report.sections import READ_LABELS
from fedexperts.report.table import columns, explanation, gain_columns, notes, table_csv
from fedexperts.report.template import fill
from fedexperts.report.verdict import verdict

FEW_NOTES = 4


def write_page(records: Sequence[Record], path: Path) -> Path:
    """Write the page about the runs to a file, or as `report.html` into a folder that exists."""
    return _write(path, "report.html", page_of(records))


def page_of(records: Sequence[Record], progress: Iterable[str] = ()) -> Pieces:
    """The page about the runs; above all the progress of those that are not finished."""
    runs = line_up(records)
    pieces = Pieces(title(runs))
    pieces.add(*progress)
    pieces.add(f'<p class="verdict" id="verdict">{prose(verdict(runs))}</p>')
    pieces.add(definitions(facts([run.record.settings for run in runs])))
    pieces.chapter("Result", _result(runs, pieces))
    pieces.chapter("How it got there", pieces.figures(chapters.course(records)))
    pieces.chapter("Who gained, who lost", _clients(runs, pieces))
    pieces.chapter("What it cost", pieces.figures(chapters.costs(runs)))
    pieces.chapter("Who has which data", pieces.figures(chapters.labels(records)))
    for run in runs:
        pieces.chapter(f"Inside {run.name}", pieces.figures(chapters.inside(run)))
    pieces.chapter("Settings", map(_settings, runs), REPEAT)
    return pieces


def write_analysis(records: Sequence[Record], sections: Sequence[Section], path: Path) -> Path:
    """Write a page about one question to some runs; in a folder that exists, as `analysis.html`."""
    runs = line_up(records)
    pieces = Pieces(title(runs))
    pieces.add(definitions(facts([run.record.settings for run in runs])), *_notes(records))
    pieces.add(*pieces.figures(sections))
    pieces.chapter("Settings", map(_settings, runs), REPEAT)
    return _write(path, "analysis.html", pieces)


def write_label_page(counts: np.ndarray, class_names: Sequence[str], heading: str, path: Path) -> Path:
    """Write the picture of a partition alone to a file, or as `labels.html` into a folder that exists."""
    samples = counts.sum(axis=1)
    found = {
        "clients": str(len(counts)),
        "classes": str(len(class_names)),
        "samples": str(samples.sum()),
        "samples of a client": f"{samples.min()} to {samples.max()}",
        "classes of a client": f"{(counts > 0).sum(axis=1).min()} to {(counts > 0).sum(axis=1).max()}",
    }
    pieces = Pieces(heading)
    pieces.add(definitions(found))
    pieces.add(*pieces.figures([Section("Who has which labels", READ_LABELS, label_picture(counts, class_names))]))
    return _write(path, "labels.html", pieces)


REPEAT = "Each run can be repeated from its settings: save them as a file and give it to the command."


def _result(runs: Sequence[Run], pieces: Pieces) -> Iterator[str]:
    cells, order = columns(runs), ranked(runs)
    looks = [(run.colour, run.dash) for run in order]
    yield table("comparison", cells, "selected", _best(cells), looks)
    saved = [pieces.file("comparison.csv", table_csv(cells)), pieces.file("comparison.tex", latex_table(runs))]
    yield f'<div class="save"><span>Save the table as</span>{"".join(saved)}</div>'
    yield lines(explanation(runs))
    yield from _notes([run.record for run in runs])
    yield from pieces.figures(chapters.result(runs))


def _best(cells: dict[str, list[str]]) -> list[tuple[str, int]]:
    """The cells with the best accuracy of each kind, where there is something to be better than."""
    marked = [header for header in ("last", "selected", "peak", "worst\n10 %", "weigh-\nted") if header in cells]
    best = {header: max(map(float, cells[header])) for header in marked if len(cells[header]) > 1}
    return [(name, place) for name, top in best.items() for place, cell in enumerate(cells[name]) if float(cell) == top]


def _clients(runs: Sequence[Run], pieces: Pieces) -> Iterator[str]:
    compared = [run for run in ranked(runs) if run.gains]
    if compared:
        yield '<p class="quiet">Clients in the selected round against the same clients under Standalone, in points.</p>'
        yield table("gains", gain_columns(compared), colours=[(run.colour, run.dash) for run in compared])
    yield from pieces.figures(chapters.clients(runs))
    yield picker(runs, pieces)


def _notes(records: Sequence[Record]) -> Iterator[str]:
    """What the runs have to say; if it is much, it opens when asked for."""
    if found := notes(records):
        yield lines(found) if len(found) <= FEW_NOTES else fold(f"{len(found)} notes of the runs", lines(found))


def _settings(run: Run) -> str:
    settings = run.record.settings
    return fold(
        run.name,
        definitions(run.record.environment),
        f"<pre>{escape(f'fedexperts run {settings.method} --config {SETTINGS}')}</pre>",
        f'<p class="quiet">{SETTINGS}:</p><pre>{escape(settings.to_toml())}</pre>',
    )


def _write(path: Path, name_in_folder: str, pieces: Pieces) -> Path:
    path = path / name_in_folder if path.is_dir() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, fill(pieces.title, pieces.body, pieces.data()))
    return path
