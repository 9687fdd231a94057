"""The command line. Every option is a field of the settings; a method's own options are taken by name too."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedexperts import torchrun
from fedexperts.cli_federation import federation, node, server, site
from fedexperts.cli_page import RUNS, Pictures, pages, show_table, take_pictures
from fedexperts.cli_results import results
from fedexperts.cli_tree import analyse
from fedexperts.completion import method_names, recipe_names, tracker_names
from fedexperts.config import EngineSettings, PrivacySettings, TaskSettings, TrainSettings, read_toml
from fedexperts.errors import FedExpertsError, SettingsError, the_method
from fedexperts.options import takes
from fedexperts.terminal import OPEN_ENDED, console, no_more, split_words

ORDER = [
    "run", "compare", "resume", "watch", "report", "analyse", "predict", "export", "adapt", "methods", "show", "data",
    "reproduce", "federation", "server", "site", "node",
]  # fmt: skip


class InOrder(TyperGroup):
    """Lists commands as somebody needs them: training first, then what comes of it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


app = typer.Typer(
    name="fedexperts",
    cls=InOrder,
    help="Personalised federated learning with mixtures of experts.",
    epilog="Example: fedexperts compare fedmoe fedavg standalone --data digits --clients 10 --rounds 30 --out demo",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(analyse)
app.add_typer(federation)
app.command(context_settings=OPEN_ENDED, short_help="Be a site of a federation.")(site)
app.command(short_help="Be the server of a federation.")(server)
app.command(short_help="Serve a site's experts to its peers, beside Flower.")(node)
app.add_typer(results)
app.add_typer(pages)
MethodName = Annotated[
    str, typer.Argument(help="a method, see `fedexperts methods`", show_default=False, autocompletion=method_names)
]
MethodNames = Annotated[
    list[str], typer.Argument(help="methods, see `fedexperts methods`", show_default=False, autocompletion=method_names)
]
Track = Annotated[
    str | None,
    typer.Option(help="follow it in tensorboard, mlflow or wandb; several, with commas", autocompletion=tracker_names),
]
Config = Annotated[Path | None, typer.Option(help="settings from a TOML file; options go before it")]


def _values(config: Path | None, values: dict[str, Any], own: dict[str, str]) -> dict[str, Any]:
    """A file's settings, with the options of the command line before them."""
    from_file = read_toml(config) if config else {}
    from_file.pop("method", None)
    return from_file | values | own


@app.command(context_settings=OPEN_ENDED)
@takes(TaskSettings, TrainSettings, PrivacySettings, EngineSettings)
def run(
    context: typer.Context,
    method: MethodName,
    out: Annotated[Path | None, typer.Option(help="folder of the run (default: a new one in runs/)")] = None,
    config: Config = None,
    track: Track = None,
    *,
    values: dict[str, Any],
) -> None:
    """Train one method. Its own options (`fedexperts methods METHOD`) are taken too.

    Example: fedexperts run fedmoe --data cifar10 --data-dir DATA --clients 10 --rounds 20 --gate-width 64
    """
    from fedexperts import api
    from fedexperts.report.progress import ProgressDisplay
    from fedexperts.trackers import trackers

    settings, following = api.settings_for(method, _values(config, values, no_more(context.args))), trackers(track)
    folder = out or RUNS / f"{method}-{settings.data}"
    with _continues() as stops, ProgressDisplay(console) as progress:
        result = api.execute(settings, None, folder, [progress, stops, *following], numbered=out is None)
    show_table([*filter(None, [result.before]), result.record])
    console.print(f"run:  {result.folder}\npage: fedexperts report {result.folder}")


@app.command(context_settings=OPEN_ENDED, short_help="Train several methods on one task.")
@takes(TaskSettings, TrainSettings, PrivacySettings, EngineSettings)
def compare(
    methods: MethodNames,
    out: Annotated[Path | None, typer.Option(help="folder of all runs (default: a new one in runs/)")] = None,
    config: Config = None,
    track: Track = None,
    pictures: Pictures = None,
    *,
    values: dict[str, Any],
) -> None:
    """Train several methods on the same task, print the table and write the page.

    Called again with the same --out it skips what is finished and continues what was interrupted.
    Example: fedexperts compare fedmoe fedavg standalone --clients 10 --model heterogeneous --rounds 30 --out demo
    """
    from fedexperts import api
    from fedexperts.engine import specs_for
    from fedexperts.methods import method_class, registry
    from fedexperts.report.page import write_page
    from fedexperts.report.progress import ProgressDisplay
    from fedexperts.task import Task
    from fedexperts.trackers import trackers

    names, own = split_words(methods, registry())
    given = _values(config, values, own)
    given = given.pop("options", {}) | given  # they may stand in a table, as a run saves them
    if not names:
        raise SettingsError("name the methods to compare: fedexperts compare fedmoe standalone …")
    kinds = {name: method_class(name) for name in names}
    options = {option for kind in kinds.values() for option in kind.Options.model_fields}
    plans = [  # an option goes to the methods that have it
        api.settings_for(name, {k: v for k, v in given.items() if k not in options - set(kind.Options.model_fields)})
        for name, kind in kinds.items()
    ]
    task, following = Task.of(plans[0].part(TaskSettings)), trackers(track)
    for plan in plans:  # what cannot run says so before anything does
        specs_for(kinds[plan.method](plan.part(TrainSettings), plan.options), task)
    folder = out or api.claim(RUNS / f"compare-{plans[0].data}", numbered=True)[0]
    with _continues(f"the same command with --out {folder}") as stops, ProgressDisplay(console) as progress:
        watching = [progress, stops, *following]
        records = [api.run_or_resume(plan, folder / plan.method, task, watching) for plan in plans]
    if not torchrun.leads():
        return
    take_pictures(records, pictures, plans[0].data_dir)
    page = write_page(records, folder / "report.html")
    show_table(records)
    console.print(f"runs: {folder}\npage: {page}")


@app.command(short_help="Make a paper's table or figure again.")
@takes(EngineSettings)
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE]...",
            help="recipes, or .toml files of your own",
            show_default=False,
            autocompletion=recipe_names,
        ),
    ] = None,
    only: Annotated[str | None, typer.Option(help="only these methods, with commas")] = None,
    case: Annotated[str, typer.Option(help="only cases with this in their name")] = "",
    seeds: Annotated[str | None, typer.Option(help="these seeds, with commas, instead of the recipe's")] = None,
    scale: Annotated[float, typer.Option(help="so much of the rounds and samples, to try it; 0.02 is a fiftieth")] = 1,
    rounds: Annotated[int | None, typer.Option(help="rounds of every run, instead of the recipe's")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="folder with the data files (else $FEDEXPERTS_DATA)")] = None,
    download: Annotated[bool | None, typer.Option(help="fetch missing sets from Hugging Face (extra 'hub')")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of runs and results (default: one per paper, in runs/)")
    ] = None,
    keep_models: Annotated[
        bool, typer.Option("--keep-models/--drop-models", help="a table needs no final models; t-SNE and gates do")
    ] = True,
    jobs: Annotated[int, typer.Option(min=1, help="runs side by side, each a process: for a GPU with room")] = 1,
    finished: Annotated[bool, typer.Option("--finished", help="show what is finished, train nothing")] = False,
    track: Track = None,
    *,
    values: dict[str, Any],
) -> None:
    """Make papers' tables and figures again and print them beside what was published. Without a name: list all.

    Called again it skips what is finished and continues what was interrupted. A run that diverged is finished.
    Example: fedexperts reproduce fedmoe/table3 --scale 0.02 --data-dir DIR
    """
    from fedexperts import recipes
    from fedexperts.recipes.illustrate import illustrate
    from fedexperts.report.progress import ProgressDisplay
    from fedexperts.trackers import trackers

    if not names:
        _list_recipes()
        return
    reduction = recipes.Reduction.check({"scale": scale, "rounds": rounds})
    choice = recipes.Choice.check({"only": only, "case": case, "seeds": seeds})
    where = {"data_dir": data_dir, "download": download}
    values |= {name: value for name, value in where.items() if value is not None}
    following = trackers(track)
    asked = [recipes.read(name) for name in dict.fromkeys(names)]
    folders = [out or RUNS / "reproduce" / (recipe.name.partition("/")[0] + reduction.suffix) for recipe in asked]
    plans = [recipes.plan(*each, choice, reduction, values) for each in zip(asked, folders, strict=True)]
    with (
        _continues("the same command", [cell.folder for plan in plans for cell in plan]) as stops,
        ProgressDisplay(console) as progress,
    ):
        made = recipes.reproduce(plans, progress, [stops], keep_models, jobs, following, train=not finished)
    shown = [
        (recipe, outcomes, folder / recipe.name.rpartition("/")[2])
        for recipe, outcomes, folder in zip(asked, made, folders, strict=True)
        if outcomes
    ]
    if not shown:
        raise SettingsError(
            f"no run of {', '.join(names)} is finished in {', '.join(map(str, dict.fromkeys(folders)))}"
        )
    for recipe, outcomes, home in shown:
        recipes.write_results(recipe, outcomes, reduction, home, shlex.join(["fedexperts", *sys.argv[1:]]))
    for recipe, outcomes, home in shown:  # last: what was measured is written, whatever the figures do
        console.print(recipes.results_table(recipe, outcomes, reduction))
        for finding in illustrate(recipe, outcomes, reduction, home):
            console.print(finding)
        console.print(f"runs: {home.parent / recipes.RUNS}\nresults.csv, results.md and a page per case: {home}")


def _list_recipes() -> None:
    from rich.table import Table

    from fedexperts import recipes

    table = Table("recipe", "what", "runs", box=None)
    for name in recipes.shipped():
        found = recipes.read(name)
        table.add_row(name, found.title, str(found.runs))
    console.print(table)


@app.command(short_help="Continue an interrupted run.")
def resume(
    folder: Annotated[Path, typer.Argument(help="the folder of a run", show_default=False)],
    data_dir: Annotated[Path | None, typer.Option(help="folder with the data files, if it has moved")] = None,
    track: Track = None,
) -> None:
    """Continue an interrupted run; it ends in exactly the state that it would have had without the break.

    Example: fedexperts resume runs/fedmoe-digits-001
    """
    from fedexperts import api
    from fedexperts.measure import SUMMARY
    from fedexperts.report.progress import ProgressDisplay
    from fedexperts.trackers import trackers

    following = trackers(track)
    if following and (folder / SUMMARY).exists():
        raise SettingsError(
            f"the run in {folder} is finished, and trackers follow a run while it trains; leave --track"
        )
    with _continues() as stops, ProgressDisplay(console) as progress:
        result = api.resume(folder, [progress, stops, *following], data_dir)
    show_table([*filter(None, [result.before]), result.record])
    console.print(f"run:  {folder}\npage: fedexperts report {folder}")


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="show one method and its options", autocompletion=method_names)
    ] = None,
) -> None:
    """List the methods, or show one.

    Example: fedexperts methods fedmoe
    """
    from rich.table import Table

    from fedexperts.catalogue import catalogue

    known = catalogue()
    if name is not None:
        found = the_method(name, known)
        console.print(f"[bold]{found.title}[/bold] ({name})\n{found.source}\n\n{found.about}\n", highlight=False)
        for part, owner in found.owners.items():
            console.print(f"  {part:16} {owner}", highlight=False)
        for option, said in found.options.items():
            console.print(f"  --{option:14} {said}", highlight=False, markup=False)
        return
    columns = {"shared": "shared", "private": "private", "peer": "between clients"}
    table = Table("method", *columns.values(), "source", box=None)
    for method, found in known.items():
        owned = [", ".join(part for part, who in found.owners.items() if who == owner) or "–" for owner in columns]
        table.add_row(method, *owned, found.source.partition(":")[0])
    console.print(table)


@app.command(short_help="Explain one method, and its options.")
def show(method: MethodName) -> None:
    """Explain one method: what it does, where it comes from, who owns which part, and its options.

    Example: fedexperts show fedmoe
    """
    methods(method)


@app.command(context_settings=OPEN_ENDED, short_help="List the data sets, or show who gets what.")
@takes(TaskSettings)
def data(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="write a page with the picture of the partition")] = None,
    config: Config = None,
    *,
    values: dict[str, Any],
) -> None:
    """List the data sets; with --data, show how one is split over the clients.

    Example: fedexperts data --data digits --clients 10 --classes-per-client 2 --out partition.html
    """
    from rich.table import Table

    from fedexperts.data import known

    given = _values(config, values, no_more(context.args))
    if not given and out is None:
        table = Table("name", "what", "classes", "looks for", box=None)
        for name, info in known().items():
            table.add_row(name, info.title, str(info.classes), ", ".join([f"{info.stem}.npz", *info.files]))
        console.print(table)
        return
    from fedexperts.given import with_model  # the list came without torch
    from fedexperts.report.page import write_label_page
    from fedexperts.task import Task

    settings = TaskSettings.check(with_model(given))
    task = Task.of(settings)
    title = f"{settings.data}, {settings.partition}, {settings.clients} clients"
    names = task.dataset.class_names if task.dataset.classes <= 12 else ()  # more would not fit a terminal
    few = [name if sum(map(len, names)) < 40 else str(i) for i, name in enumerate(names)]
    table = Table("client", *few, "classes", "train", "val.", "test", title=title, box=None, padding=(0, 1, 0, 0))
    for k, (client, row) in enumerate(zip(task.clients, task.counts, strict=True)):
        counts = [str(n) if n else "·" for n in row] if names else []
        sizes = [int((row > 0).sum()), len(client.train), len(client.validation), len(client.test)]
        table.add_row(task.client_names[k], *counts, *map(str, sizes))
    for column in table.columns:
        column.no_wrap, column.justify = True, "right"
    console.print(table)
    if out is not None:
        console.print(f"page: {write_label_page(task.counts, task.dataset.class_names, title, out)}")


@contextmanager
def _continues(command: str | None = None, runs: Sequence[Path] = ()) -> Iterator[Any]:
    """On Ctrl-C the last checkpoint stays, and the command that continues is printed. Gives an observer to run with.

    `runs`: folders of runs of which it may not hear, as other processes make them.
    """
    from fedexperts.engine import Observer, Simulation

    class Folder(Observer):
        run: Path | None = None

        def started(self, simulation: Simulation) -> None:
            self.run = simulation.folder.parent if simulation.folder else None

    stops = Folder()
    try:
        yield stops
    except KeyboardInterrupt:
        if stops.run is not None:
            saved = (stops.run / "state" / "checkpoint.json").exists()
            what = "the last checkpoint is kept" if saved else "there was no checkpoint yet, it starts again"
        else:
            what = "what is finished and the last checkpoints are kept" if any(run.exists() for run in runs) else ""
        again = f"; {what}. To continue: {command or f'fedexperts resume {stops.run}'}"
        print(f"\ninterrupted{again if what else ' before anything was written'}", file=sys.stderr)
        raise SystemExit(130) from None


def main() -> None:
    """Run the command line; what the user can mend is one line and exit code 2, never a traceback."""
    try:
        app(prog_name="fedexperts")
    except FedExpertsError as error:
        if torchrun.leads():  # the others have the same
            print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a folder that cannot be made, a disk that is full
        print(f"error: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
