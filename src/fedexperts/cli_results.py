"""`fedexperts predict`, `export` and `adapt`: what a finished run is good for."""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedexperts.config import EngineSettings, TrainSettings
from fedexperts.errors import SettingsError
from fedexperts.options import takes
from fedexperts.terminal import console

if TYPE_CHECKING:
    from fedexperts.engine import ClientModel
    from fedexperts.measure import Figure, Kind

results = typer.Typer()
Run = Annotated[Path, typer.Argument(help="folder of a finished run", show_default=False)]
DataDir = Annotated[Path | None, typer.Option(help="folder with the data files, if it has moved")]
ClientName = Annotated[str, typer.Option("--client", help="the client, by its name or its number", show_default=False)]


@results.command(short_help="Ask a client's model about samples.")
def predict(
    run: Annotated[Path, typer.Argument(help="folder of a finished run, or of an exported model", show_default=False)],
    file: Annotated[
        Path,
        typer.Argument(help="samples: .npz (x), .npy, .csv, .jsonl, a picture, a folder of them", show_default=False),
    ],
    client: Annotated[str | None, typer.Option(help="whose model, by name or number (not for an exported one)")] = None,
    out: Annotated[Path | None, typer.Option(help="a .csv file (default: print it)")] = None,
    data_dir: DataDir = None,
) -> None:
    """Ask a client's model: a line for each sample, with its class and the probabilities of all classes.

    Example: fedexperts predict runs/fedmoe-clients-001 --client north new.npz --out answers.csv
    """
    from fedexperts.data import read_inputs

    model = _model(run, client, data_dir)
    names, samples = read_inputs(file, model.form)
    probabilities = model.predict(samples)
    rows = [
        [name, model.class_names[row.argmax()], *(f"{value:.6f}" for value in row)]
        for name, row in zip(names, probabilities, strict=True)
    ]
    target = sys.stdout if out is None else out.open("w", newline="", encoding="utf-8")
    try:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(["sample", "class", *model.class_names])
        writer.writerows(rows)
    finally:
        if out is not None:
            target.close()
    if out is not None:
        console.print(f"{len(rows):,} answers: {out}", highlight=False, markup=False)


@results.command(short_help="Write a client's model to use it elsewhere.")
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="a new folder for the model", show_default=False)],
    client: ClientName,
    data_dir: DataDir = None,
) -> None:
    """Write a client's model as files that need no run: safetensors, a card, and programs where the model allows.

    `fedexperts.load_exported(OUT)` and `fedexperts predict OUT FILE` use it.
    Example: fedexperts export runs/fedmoe-clients-001 --client north north-model
    """
    from fedexperts import api

    wrote(api.load(run, data_dir).export(client, out))


@results.command(short_help="Let a new client join a finished run.")
@takes(TrainSettings, EngineSettings)
def adapt(
    run: Run,
    data: Annotated[Path, typer.Option(help="the new client's folder, with train and test", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="a new folder for its model (default: NAME-model)")] = None,
    model: Annotated[str | None, typer.Option(help="its model (default: the first client's)")] = None,
    data_dir: DataDir = None,
    *,
    values: dict[str, Any],
) -> None:
    """Let a new client join a finished run: it gets the shared parts, trains its own (10 rounds), and is exported.

    It trains as the run did, unless options say otherwise. The run does not change.
    Example: fedexperts adapt runs/fedmoe-clients-001 --data elsewhere/east --rounds 20
    """
    from fedexperts import api
    from fedexperts.client import Client
    from fedexperts.export import check_new
    from fedexperts.report.progress import ProgressDisplay

    folder = out or Path(f"{data.resolve().name}-model")
    check_new(folder)
    result = api.load(run, data_dir)
    new = Client.read(data.resolve(), model, result.record.settings.image_size)
    with ProgressDisplay(console) as progress:
        joined = result.adapt(new, [progress], **values)
    trained = f"trained {', '.join(joined.trained)}" if joined.trained else "nothing to train: all parts are shared"
    scored(f"client {new.name}: {trained}", joined.figures)
    wrote(joined.export(folder))


def _model(folder: Path, client: str | None, data_dir: Path | None) -> "ClientModel":
    from fedexperts import api
    from fedexperts.export import is_exported, load_exported
    from fedexperts.measure import Record

    if is_exported(folder):
        if client is not None:
            raise SettingsError(f"{folder} is the model of one client; leave out --client")
        return load_exported(folder)
    if client is None:
        names = ", ".join(Record.load(folder).client_names)
        raise SettingsError(f"whose model? --client is one of: {names}")
    return api.load(folder, data_dir).model(client)


def scored(what: str, figures: "Mapping[Kind, Figure]") -> None:
    """Say what it is about, and how well a model did on its client's test data."""
    shown = ", ".join(f"{kind} {100 * figure.mean:.2f} %" for kind, figure in figures.items())
    console.print(f"{what}; test accuracy: {shown}", highlight=False, markup=False)


def wrote(folder: Path) -> None:
    """Say where a model is, and in which files."""
    files = ", ".join(sorted(path.name for path in folder.iterdir()))
    console.print(f"model: {folder} ({files})", highlight=False, markup=False)
