"""One client under all methods: what the page's scripts draw when a reader picks one."""

from collections.abc import Sequence
from html import escape

import numpy as np

from fedexperts.measure import MEANING, Record, task_of
from fedexperts.report.drawing import canvas, text
from fedexperts.report.facts import partition
from fedexperts.report.figures import ACCURACY
from fedexperts.report.pieces import Pieces, holder, table
from fedexperts.report.runs import Run

POINTS = 200  # of a curve: more cannot be seen in a figure
NUMBERS = 400_000  # of all clients' curves in a run: more would make the page slow
HEADERS = ("method", *MEANING, "gain", "rank of this\nclient")
FIGURES = {"one-client-accuracy": "Accuracy of this client", "one-client-data": "Data of this client"}


def picker(runs: Sequence[Run], pieces: Pieces) -> str:
    """The part of the page, and what it shows."""
    tasks: dict[object, list[Run]] = {}
    for run in runs:
        tasks.setdefault(task_of(run.record), []).append(run)
    pieces.clients = [_task(own) for own in tasks.values()]
    layouts = (canvas("round", ACCURACY.removeprefix("mean "), "x unified"), canvas("class", "samples"))
    layouts[1].update_xaxes(type="category", showgrid=False)
    for name, figure in zip(FIGURES, layouts, strict=True):
        figure.update_layout(height=340, showlegend=False)  # the table beside it says whose line is which
        pieces.figure(name, figure, showlegend=name == "one-client-accuracy")
    drawings = [
        f"<div><h4>{escape(heading)}</h4>{holder(name, heading, 340)}</div>" for name, heading in FIGURES.items()
    ]
    return (
        '<figure id="one-client"><h3>One client, all methods</h3>'
        '<p class="quiet">Pick a client: its accuracy over the rounds under every method, its figures, and its data. '
        "The figures are from the rounds in which the run as a whole was last, best on validation data, and best; the "
        "rank is that of the client's selected accuracy among all clients.</p>"
        '<div class="pick"><label for="pick-client">Client</label>'
        '<select id="pick-task" aria-label="Task" data-keep></select><select id="pick-client" data-keep></select>'
        '<button type="button" id="client-before" aria-label="Client before">←</button>'
        '<button type="button" id="client-after" aria-label="Next client">→</button>'
        '<span id="client-said" class="quiet"></span></div>'
        f"{table('client-figures', {header: [] for header in HEADERS}, chosen='selected')}"
        f'<div class="two">{"".join(drawings)}</div></figure>'
    )


def _task(runs: Sequence[Run]) -> dict[str, object]:
    """The clients of one task, under each of its runs; accuracies as hundredths of a percent, whole."""
    first = runs[0].record
    names = list(first.client_names) or [str(k) for k in range(len(first.counts))]
    return {
        "name": f"{first.settings.data}, {partition(first.settings)}, seed {first.settings.seed}",
        "clients": names,
        "classes": [text(name) for name in first.class_names],
        "counts": first.counts.tolist(),
        "runs": [_run(run) for run in runs],
    }


def _run(run: Run) -> dict[str, object]:
    curve, places = run.record.curve, _places(run.record)
    return {
        "name": text(run.name),
        "colour": run.colour,
        "dash": run.dash,
        "symbol": run.symbol,
        "selected_round": run.selected.round,
        "rounds": curve.rounds[places].tolist(),
        "accuracy": _whole(curve.test[places].T),
        "gains": _whole(np.array(run.gains) / 100) if run.gains else None,
        **{kind: _whole(np.array(figure.clients)) for kind, figure in run.record.figures.items()},
    }


def _places(record: Record) -> np.ndarray:
    """The evaluated rounds that are drawn: all, or so many as have room, and always the selected and the last."""
    rounds = record.curve.rounds
    room = max(2, min(POINTS, NUMBERS // len(record.counts)))
    some = np.linspace(0, len(rounds) - 1, min(room, len(rounds))).round().astype(int)
    found: np.ndarray = np.union1d(some, np.searchsorted(rounds, record.figures["selected"].round))
    return found


def _whole(fractions: np.ndarray) -> object:
    return np.round(10_000 * fractions).astype(int).tolist()
