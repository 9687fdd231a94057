"""`fedexperts analyse`: one command for each question to finished runs. It prints the answer and draws it on a page."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import typer

from fedexperts.errors import MethodError, SettingsError
from fedexperts.terminal import console, run_folders

if TYPE_CHECKING:
    from fedexperts.engine import Simulation
    from fedexperts.measure import Record
    from fedexperts.report.section import Section

analyse = typer.Typer(
    name="analyse",
    help="Ask finished runs a question: the answer is printed, and drawn on a page.",
    short_help="Ask finished runs a question.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Kind = Literal["selected", "peak", "last"]
Runs = Annotated[list[Path], typer.Argument(help="folders of finished runs", show_default=False)]
Out = Annotated[Path, typer.Option(help="the page")]
DataDir = Annotated[Path | None, typer.Option(help="folder with the data files, if it has moved")]
Reading = Annotated[Kind, typer.Option("--figure", help="the round that counts: best on validation data, best, last")]
NO_EXPERTS = "no experts are weighed there, or not as many by every client, so there is no gate to look at"


class Answer(Protocol):
    """What an analysis finds."""

    def save(self, path: Path) -> None: ...


@analyse.command()
def clients(
    run: Annotated[Path, typer.Argument(help="folder of a finished run", show_default=False)],
    other: Annotated[Path, typer.Argument(help="folder of the run it is held against", show_default=False)],
    figure: Reading = "selected",
    out: Out = Path("clients.html"),
) -> None:
    """Every client's accuracy under one method against another's.

    Example: fedexperts analyse clients demo/fedmoe demo/standalone
    """
    from fedexperts.report import sections

    records = records_of([run, other])
    show(records, [sections.clients(*_exactly_two(records), figure)], out)


@analyse.command()
def cost(
    runs: Runs,
    target: Annotated[
        float | None,
        typer.Option(
            min=0, max=100, help="mean test accuracy in percent (default: the highest whole one that all runs reach)"
        ),
    ] = None,
    out: Out = Path("cost.html"),
) -> None:
    """Rounds, bytes and FLOPs until a target accuracy.

    Example: fedexperts analyse cost demo --target 90
    """
    from fedexperts.report import sections
    from fedexperts.report.table import cost_table

    records = records_of(runs)
    console.print(cost_table(records, target))
    show(records, [sections.cost(records, target)], out)


@analyse.command()
def sweep(
    runs: Runs,
    over: Annotated[str | None, typer.Option(help="the setting (default: the one in which the runs differ)")] = None,
    figure: Reading = "selected",
    out: Out = Path("sweep.html"),
) -> None:
    """Accuracy against a setting; seeds are averaged.

    Example: fedexperts analyse sweep runs/alpha-0.1 runs/alpha-0.3 runs/alpha-0.5 --over alpha
    """
    from fedexperts import analyses
    from fedexperts.report import sections
    from fedexperts.report.table import sweep_table

    records = records_of(runs)
    console.print(sweep_table(analyses.sweep(records, over, figure)))
    show(records, [sections.sweep(records, over, figure)], out)


@analyse.command()
def convergence(runs: Runs, out: Out = Path("convergence.html")) -> None:
    """Accuracy over the rounds; seeds are averaged.

    Example: fedexperts analyse convergence seeds/1 seeds/2 seeds/3
    """
    from fedexperts.report import sections

    records = records_of(runs)
    show(records, [sections.convergence(records)], out)


@analyse.command()
def gates(
    runs: Runs,
    clients: Annotated[
        str | None, typer.Option(help="clients to show: 3,7,8, or the first so many  [default: the first 12]")
    ] = None,
    data_dir: DataDir = None,
    out: Out = Path("gates.html"),
) -> None:
    """How experts are weighed, by client and by class.

    By the final models, on all test data. The weights are saved as gates.csv in the run's folder; its report shows
    them from then on.
    Example: fedexperts analyse gates demo/fedmoe --clients 0,3,5
    """
    from fedexperts import analyses
    from fedexperts.report import sections

    gated = those(records_of(runs), analyses.weighs, NO_EXPERTS)
    chosen = [chosen_clients(clients, record, sections.SHOWN_CLIENTS) for record in gated]
    ask(gated, analyses.gate_weights, analyses.GATES, data_dir)
    show_each(gated, sections.gates, out, chosen)


@analyse.command()
def tsne(
    runs: Runs,
    samples: Annotated[int, typer.Option(min=1, help="test samples of a client, at most")] = 50,
    clients: Annotated[
        str | None, typer.Option(help="clients to show: 3,7,8, or the first so many  [default: the first 10]")
    ] = None,
    data_dir: DataDir = None,
    out: Out = Path("tsne.html"),
) -> None:
    """Representations in a plane, by client and by class.

    Those that the final models make of test samples. The plane is saved as representations.csv in the run's folder;
    its report shows it from then on.
    Example: fedexperts analyse tsne demo/fedmoe demo/fedavg --samples 50 --clients 10
    """
    from fedexperts import analyses, api
    from fedexperts.report import sections

    records = records_of(runs)
    chosen = [chosen_clients(clients, record, 10) for record in records]
    for record, own in zip(records, chosen, strict=True):
        folder = folder_of(record)
        table = analyses.embed(api.load(folder, data_dir).simulation, own, samples)
        table.save(folder / analyses.REPRESENTATIONS)
    show_each(records, sections.representations, out)


def records_of(runs: list[Path]) -> "list[Record]":
    from fedexperts.measure import Record

    return [Record.load(folder) for folder in run_folders(runs)]


def those(records: "Sequence[Record]", fit: "Callable[[Record], bool]", otherwise: str) -> "list[Record]":
    """The runs that can answer a question; if none can, that is an error that says why."""
    if found := [record for record in records if fit(record)]:
        return found
    titles = ", ".join(dict.fromkeys(f"{record.title} ({record.settings.method})" for record in records))
    raise MethodError(f"{titles}: {otherwise}")


def _exactly_two(records: "list[Record]") -> "tuple[Record, Record]":
    if len(records) != 2:
        raise SettingsError(f"two runs are held against each other, these folders hold {len(records)}; name the runs")
    return records[0], records[1]


def folder_of(record: "Record") -> Path:
    assert record.folder is not None  # it was loaded from there
    return record.folder


def ask(
    records: "Sequence[Record]", question: "Callable[[Simulation], Answer]", file: str, data_dir: Path | None
) -> None:
    """Let the models of each run answer, and leave the answer in its folder."""
    from fedexperts import api

    for record in records:
        folder = folder_of(record)
        question(api.load(folder, data_dir).simulation).save(folder / file)


def chosen_clients(asked: str | None, record: "Record", few: int) -> list[int]:
    """The clients that are meant: a number is how many, from the first on; with commas it is their numbers."""
    total = record.settings.clients
    try:
        numbers = [int(word) for word in (asked or str(min(few, total))).split(",") if word.strip()]
    except ValueError:
        raise SettingsError(f"--clients cannot be '{asked}': a number, or clients with commas, as in 3,7,8") from None
    chosen = list(dict.fromkeys(numbers)) if asked and "," in asked else list(range(numbers[0] if numbers else 0))
    if not chosen or not all(0 <= client < total for client in chosen):
        raise SettingsError(f"--clients cannot be '{asked}': there are {total} clients, numbered from 0")
    return chosen


def show_each(
    records: "Sequence[Record]", sections_of: "Callable[..., Iterable[Section]]", out: Path, *own: Sequence[Any]
) -> None:
    """The sections of each run, from the record, what is its `own`, and how it is called among the others."""
    from fedexperts.report.runs import run_names

    shown = zip(records, *own, run_names(records), strict=True)
    show(records, [section for about in shown for section in sections_of(*about)], out)


def show(records: "Sequence[Record]", found: "Sequence[Section]", out: Path) -> None:
    from fedexperts.report.page import write_analysis

    for section in found:
        if section.finding:
            console.print(section.finding, highlight=False, markup=False)
    console.print(f"page: {write_analysis(records, found, out)}")
