"""`fedexperts report` and `watch`: the page about runs, as a file or live."""

import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedexperts.cli_analyse import Answer, folder_of
from fedexperts.errors import FedExpertsError, SettingsError
from fedexperts.terminal import console, run_folders

if TYPE_CHECKING:
    from fedexperts.engine import Simulation
    from fedexperts.measure import Record

pages = typer.Typer()
RUNS = Path("runs")
QUICK = 20_000  # test samples: to ask a run's models about so many takes seconds
TSNE_CLIENTS, TSNE_SAMPLES = 10, 50
Pictures = Annotated[
    bool | None,
    typer.Option(
        "--pictures/--no-pictures",
        help="ask the runs' models for gates, matrices and t-SNE where that was not done (default: if it is quick)",
    ),
]


@pages.command(short_help="Write the page about finished runs.")
def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of finished runs", show_default=False)],
    out: Annotated[Path, typer.Option(help="the page")] = Path("report.html"),
    latex: Annotated[Path | None, typer.Option(help="write the table for a paper too")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="a folder for every figure as SVG, PDF and CSV (extra 'figures')")
    ] = None,
    pictures: Pictures = None,
    data_dir: Annotated[Path | None, typer.Option(help="folder with the data files, if it has moved")] = None,
) -> None:
    """Write one page about one or several finished runs (or folders that `compare` made), and print their table.

    Example: fedexperts report demo/fedmoe demo/fedavg --out page.html --latex table.tex
    """
    from fedexperts.measure import Record
    from fedexperts.report.latex import latex_table
    from fedexperts.report.page import write_page
    from fedexperts.report.runs import line_up

    records = [Record.load(folder) for folder in run_folders(runs)]
    take_pictures(records, pictures, data_dir)
    page = write_page(records, out)
    show_table(records)
    console.print(f"page: {page}")
    if latex is not None:
        latex.write_text(latex_table(line_up(records)), encoding="utf-8")
        console.print(f"table: {latex}")
    if figures is not None:
        from fedexperts.report.saving import save_figures

        console.print(f"figures: {len(save_figures(records, figures))} in {figures}")


@pages.command(short_help="Show the page of runs while they go on.")
def watch(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="runs, or folders of runs  [default: what changed last in runs/]", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="where to listen; 0: any port that is free")] = 8765,
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    expose: Annotated[
        bool, typer.Option("--expose", help="let other machines see it: with a --host they reach")
    ] = False,
    browser: Annotated[bool, typer.Option(help="open a browser")] = False,
) -> None:
    """Show the page of runs while they go on, in a browser on this machine; it follows every round.

    Runs that begin later in these folders come into it. Ctrl-C ends it, not the runs.
    Example: fedexperts watch demo --browser
    """
    from fedexperts.report.live import Watched
    from fedexperts.report.server import Server, is_loopback

    if not is_loopback(host) and not expose:
        raise SettingsError(
            f"--host {host} shows the runs to everybody who can reach this machine; if that is meant, add --expose"
        )
    server = Server(Watched(lambda: _watched(folders)), host, port)
    console.print(f"watching: {', '.join(map(str, folders)) if folders else f'the latest in {RUNS}/'}", highlight=False)
    console.print(f"page: {server.url} (Ctrl-C ends it, not the runs)", highlight=False)
    if browser:
        webbrowser.open(server.url)
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()


def _watched(folders: list[Path] | None) -> list[Path]:
    """The runs that are there now."""
    if not folders:
        inside = [path for path in RUNS.glob("*") if path.is_dir()]
        folders = [max(inside, key=_changed)] if inside else []
    return [folder for folder in run_folders(folders) if (folder / "settings.toml").exists()]


def _changed(folder: Path) -> float:
    """When a round of a run in it ended last."""
    return max((path.stat().st_mtime for path in folder.glob("**/history.csv")), default=0.0)


def show_table(records: "Sequence[Record]") -> None:
    """The runs' table, and what cannot stand in it."""
    from fedexperts.report.table import comparison_table, spent_table
    from fedexperts.report.verdict import mixture_verdict

    console.print(comparison_table(records))
    for table in filter(None, map(spent_table, records)):
        console.print(table)
    for said in filter(None, map(mixture_verdict, records)):
        console.print(said, highlight=False, markup=False)


def take_pictures(records: "Sequence[Record]", wanted: bool | None = None, data_dir: Path | None = None) -> None:
    """Let each run's models say what its page shows of them, and leave it in the folder; what is there stays."""
    from fedexperts import api

    for record in records:
        if wanted is False or (wanted is None and record.curve.test_samples.sum() > QUICK):
            continue
        folder = folder_of(record)
        try:
            if not (asked := _open_questions(record)):
                continue
            simulation = api.load(folder, data_dir).simulation
        except FedExpertsError as error:
            if wanted:
                raise
            console.print(f"{record.title}: no pictures of its models ({error})", highlight=False, markup=False)
            continue
        for name, question in asked.items():
            with suppress(FedExpertsError):  # what these models cannot be asked, as of different widths for one plane
                question(simulation).save(folder / name)


def _open_questions(record: "Record") -> "dict[str, Callable[[Simulation], Answer]]":
    """What the models of a run can be asked and have not been, by the file for the answer."""
    from fedexperts import analyses

    def plane(simulation: "Simulation") -> analyses.SampleTable:
        return analyses.embed(simulation, range(min(TSNE_CLIENTS, record.settings.clients)), TSNE_SAMPLES)

    fitting: dict[str, tuple[bool, Callable[[Simulation], Answer]]] = {
        analyses.GATES: (analyses.weighs(record), analyses.gate_weights),
        analyses.MATRIX: (analyses.mixes(record), analyses.aggregation_matrix),
        analyses.POOL: (analyses.pools(record), analyses.pool_use),
        analyses.USE: (analyses.shares_an_expert(record), analyses.use),
        analyses.REPRESENTATIONS: (True, plane),
    }
    folder = folder_of(record)
    return {name: ask for name, (fits, ask) in fitting.items() if fits and not (folder / name).exists()}
