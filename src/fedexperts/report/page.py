"""The page about runs: one HTML file that needs nothing else and opens with a double click."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from plotly.offline import get_plotlyjs

from fedexperts.config import Settings
from fedexperts.files import write_atomically
from fedexperts.measure import SETTINGS, Record
from fedexperts.report.figures import label_picture
from fedexperts.report.runs import Run, line_up
from fedexperts.report.section import Section
from fedexperts.report.sections import READ_LABELS, of_runs
from fedexperts.report.table import columns, explanation, notes
from fedexperts.report.template import PAGE
from fedexperts.report.verdict import verdict


def write_page(records: Sequence[Record], path: Path) -> Path:
    """Write the page about the runs to a file, or as `report.html` into a folder that exists."""
    runs = line_up(records)
    title = _title(runs)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict">{escape(verdict(runs)).replace(" %", "&nbsp;%")}</p>',
        _definitions(_facts([run.record.settings for run in runs])),
        "<h2>Comparison</h2>",
        _table(runs),
        _lines([*explanation(runs), *notes(records)]),
        *_sections(of_runs(records)),
        "<h2>Settings</h2>",
        "<p>Each run can be repeated from its settings: save them as a file and give it to the command.</p>",
        *map(_settings, runs),
    ]
    return _write(path, "report.html", title, body)


def write_analysis(records: Sequence[Record], sections: Sequence[Section], path: Path) -> Path:
    """Write a page about one question to some runs; in a folder that exists, as `analysis.html`."""
    runs = line_up(records)
    title = _title(runs)
    body = [
        f"<h1>{escape(title)}</h1>",
        _definitions(_facts([run.record.settings for run in runs])),
        _lines(notes(records)),
        *_sections(sections),
        "<h2>Settings</h2>",
        *map(_settings, runs),
    ]
    return _write(path, "analysis.html", title, body)


def write_label_page(counts: np.ndarray, class_names: Sequence[str], title: str, path: Path) -> Path:
    """Write the picture of a partition alone to a file, or as `labels.html` into a folder that exists."""
    samples = counts.sum(axis=1)
    facts = {
        "clients": str(len(counts)),
        "classes": str(len(class_names)),
        "samples": str(samples.sum()),
        "samples of a client": f"{samples.min()} to {samples.max()}",
        "classes of a client": f"{(counts > 0).sum(axis=1).min()} to {(counts > 0).sum(axis=1).max()}",
    }
    body = [
        f"<h1>{escape(title)}</h1>",
        _definitions(facts),
        *_sections([Section("Who has which labels", READ_LABELS, label_picture(counts, class_names))]),
    ]
    return _write(path, "labels.html", title, body)


# --- what is said


def _title(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs]
    data = " and ".join(dict.fromkeys(run.record.settings.data for run in runs))
    if len(names) > 4:
        return f"{len(names)} runs on {data}"
    return f"{', '.join(names[:-1])} and {names[-1]} on {data}" if len(names) > 1 else f"{names[0]} on {data}"


def _facts(settings: Sequence[Settings]) -> dict[str, str]:
    """What was run; where runs differ, every value."""
    described = [_describe(one) for one in settings]
    return {name: " / ".join(dict.fromkeys(facts[name] for facts in described)) for name in described[0]}


def _describe(settings: Settings) -> dict[str, str]:
    return {
        "data": settings.data + (f", {settings.samples:,} samples" if settings.samples else ""),
        "partition": _partition(settings),
        "clients": str(settings.clients),
        "models": ", ".join(settings.model),
        "rounds": str(settings.rounds),
        "clients sampled in a round": f"{100 * settings.participation:g} %",
        "local epochs": str(settings.epochs),
        "local training": f"{settings.optimizer}, learning rate {settings.lr:g}, batch {settings.batch_size}",
        "seed": str(settings.seed),
    }


def _partition(settings: Settings) -> str:
    alpha = f"Dirichlet α = {settings.alpha:g}"
    size = f", {settings.samples_per_client} samples each" if settings.samples_per_client else ""
    kinds = {
        "homogeneous": "homogeneous",
        "pathological": f"pathological, {settings.classes_per_client} classes per client, "
        + ("equal counts" if settings.balanced else f"{alpha} counts"),
        "dirichlet": alpha,
        "own": "none, each client brought its own data",
        "dirichlet-shared": f"{alpha}, {100 * settings.shared_ratio:g} % of each class shared evenly",
    }
    drift = f", {settings.drift} drift through {settings.phases} phases" if settings.drift != "none" else ""
    return kinds[settings.partition] + size + drift


# --- HTML


def _sections(sections: Iterable[Section]) -> Iterator[str]:
    for number, (heading, how_to_read, figure, finding) in enumerate(sections, start=1):
        drawing = figure.to_html(
            full_html=False,
            include_plotlyjs=False,  # it stands once, in the head
            div_id=f"figure-{number}",
            default_height=f"{figure.layout.height}px",
            config={
                "responsive": True,
                "displaylogo": False,
                "modeBarButtons": [["toImage", "resetScale2d"]],
            },
        )
        said = f'<p class="finding">{escape(finding)}</p>' if finding else ""
        yield f'<section><h2>{escape(heading)}</h2>{said}<p class="quiet">{escape(how_to_read)}</p>{drawing}</section>'


def _table(runs: Sequence[Run]) -> str:
    cells = columns(runs)
    chosen = [' class="chosen"' if header == "selected" else "" for header in cells]
    headers = [escape(header.replace("-\n", "")).replace("\n", "<br>") for header in cells]
    head = "".join(f"<th{mark}>{header}</th>" for header, mark in zip(headers, chosen, strict=True))
    lines = [
        "".join(f"<td{mark}>{escape(cell)}</td>" for cell, mark in zip(line, chosen, strict=True))
        for line in zip(*cells.values(), strict=True)
    ]
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _definitions(facts: Mapping[str, str]) -> str:
    pairs = [f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items()]
    return f"<dl>{''.join(pairs)}</dl>"


def _lines(lines: Sequence[str]) -> str:
    return f'<p class="quiet">{"<br>".join(map(escape, lines))}</p>'


def _settings(run: Run) -> str:
    settings = run.record.settings
    command = f"fedexperts run {settings.method} --config {SETTINGS}"
    return (
        f"<details><summary>{escape(run.name)}</summary>"
        f"{_definitions(run.record.environment)}"
        f"<pre>{escape(command)}</pre><p class='quiet'>{SETTINGS}:</p><pre>{escape(settings.to_toml())}</pre>"
        "</details>"
    )


def _write(path: Path, name_in_folder: str, title: str, body: Iterable[str]) -> Path:
    path = path / name_in_folder if path.is_dir() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    text = PAGE.substitute(title=escape(title), plotly=get_plotlyjs(), body="\n".join(body))
    write_atomically(path, text)
    return path
