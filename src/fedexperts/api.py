"""The public way to run a method, from Python and from the command line alike."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from keyword import iskeyword
from pathlib import Path
from typing import Any

import numpy as np

from fedexperts import torchrun
from fedexperts.analyses.tables import write_table
from fedexperts.client import Client
from fedexperts.config import EngineSettings, Settings, TaskSettings, TrainSettings
from fedexperts.engine import ClientModel, DividedSimulation, Joining, Observer, Simulation, led, started
from fedexperts.engine.saved import MANIFEST
from fedexperts.environment import environment
from fedexperts.errors import DivergedError, SavedStateError, SettingsError, suggestion
from fedexperts.export import save_model
from fedexperts.files import write_atomically
from fedexperts.given import with_model
from fedexperts.measure import (
    BEFORE,
    FETCHES,
    HISTORY,
    LABELS,
    SETTINGS,
    STATE,
    SUMMARY,
    Fetches,
    Figure,
    History,
    Kind,
    Record,
    Row,
    curve,
    lacking,
    privacy_of,
    read_labels,
    write_labels,
)  # fmt: skip
from fedexperts.methods import Beginning, State, method_class, registry
from fedexperts.task import Task

DIVERGED = "diverged.txt"
"""Says in a run's folder that its loss stopped being a number, and when: that is its result."""


@dataclass(frozen=True)
class Result:
    """A run that has ended (or was loaded): its record, and its models."""

    record: Record
    simulation: Simulation = field(repr=False)
    folder: Path | None = None

    @property
    def before(self) -> Record | None:
        """The record of the run whose end was this one's beginning, if it had one and that is still there."""
        return self.record.before

    @property
    def history(self) -> Sequence[Row]:
        """One row per round and client; `pandas.DataFrame(result.history)` reads it."""
        return self.record.rows

    @property
    def figures(self) -> dict[Kind, Figure]:
        """The test accuracy in three honest readings: last, selected, peak."""
        return self.record.figures

    @property
    def clients(self) -> list[State]:
        """Every client's complete model as named tensors."""
        return [self.simulation.client_state(k) for k in range(len(self.simulation.specs))]

    def model(self, client: int | str) -> ClientModel:
        """A client's model as it would be used now, by its number or its name."""
        number = self.simulation.task.number(client)
        return ClientModel.of(self.simulation, number, self.record.curve.validation_of(number))

    def predict(self, client: int | str, inputs: Any) -> np.ndarray:
        """Class probabilities of a client's model for samples like those of the task's data set, or for plain texts.

        Images are uint8, samples × channels × height × width.
        """
        return self.model(client).predict(inputs)

    def export(self, client: int | str, folder: str | Path) -> Path:
        """Write a client's model so that it can be used without the run: `fedexperts.load_exported(folder)`."""
        number, record = self.simulation.task.number(client), self.record
        tested = {kind: figure.clients[number] for kind, figure in record.figures.items()}
        return save_model(self.model(number), Path(folder), tested, record.environment)

    def adapt(self, client: Client, observers: Sequence[Observer] = (), rounds: int = 10, **values: Any) -> "Joined":
        """Let a new client join: it gets the shared parts as they are now, and trains its own for some rounds.

        `values`: how to train, where that differs from the run (lr, epochs …). Nothing leaves the client, and the run
        is not changed.
        """
        history = History(None)
        known = {*TrainSettings.model_fields, *EngineSettings.model_fields}
        if unknown := [name for name in values if name not in known]:
            raise SettingsError(f"unknown setting '{unknown[0]}' of how to train{suggestion(unknown[0], known)}")
        joining = Joining.of(self.simulation, client, (history, *observers), rounds=rounds, **values)
        joining.run()
        for observer in observers:
            observer.completed(None)
        found = curve(history.rows)  # of the new client alone
        model = ClientModel.of(joining, joining.client, found.validation_of(0))
        return Joined(model, found.figures(), history.rows, joining.trains, environment(joining.device))

    def report(self, path: str | Path) -> Path:
        """Write the page of this run."""
        from fedexperts.report.page import write_page  # here, because plotly takes a while to import

        return write_page([self.record], Path(path))


@dataclass(frozen=True)
class Joined:
    """A client that has joined a finished run."""

    model: ClientModel = field(repr=False)
    figures: dict[Kind, Figure]  # its test accuracy
    history: Sequence[Row] = field(repr=False)
    trained: Sequence[str]  # the parts that it trained; the others it has from the run
    environment: dict[str, str] = field(repr=False)

    def export(self, folder: str | Path) -> Path:
        """Write its model so that it can be used anywhere: `fedexperts.load_exported(folder)`."""
        tested = {kind: figure.mean for kind, figure in self.figures.items()}
        return save_model(self.model, Path(folder), tested, self.environment)


Given = Task | Sequence[Client]
"""A task, or the clients that make one."""


def run(
    method: str,
    task: Given | None = None,
    *,
    out: str | Path | None = None,
    observers: Sequence[Observer] = (),
    **values: Any,
) -> Result:
    """Train a method on a task: `run("fedmoe", Task.of(data="digits"), rounds=50, gate_width=32)`.

    The task may be a list of clients with their own data: `run("fedmoe", [Client("north", …), …])`.

    `values` are settings (see `fedexperts.Settings`) and the method's own options by name. With `out`, the run is saved
    there, with checkpoints; without, nothing is written.
    """
    if task is not None and not isinstance(task, Task):
        own = {"class_names", "common_model", "name", *TaskSettings.model_fields}
        task = Task.of_clients(task, **{name: values.pop(name) for name in list(values) if name in own})
    if task is not None:
        given = task.settings.model_dump()
        if clash := sorted(name for name in values if name in given):
            raise SettingsError(f"{', '.join(clash)} belong to the task, which is given already")
        values = given | values
    settings = settings_for(method, values)
    return execute(settings, task, folder=None if out is None else Path(out), observers=observers)


def settings_for(method: str, values: Mapping[str, Any], planned: Mapping[Path, Settings] | None = None) -> Settings:
    """Complete settings from plain values: settings and the method's own options, flat or in a table of its name.

    A run may go on from one that is only `planned` for a folder.
    """
    kind = method_class(method)

    def saved(folder: Path) -> Settings:
        if planned and folder in planned:
            return planned[folder]
        if not (folder / SETTINGS).exists():
            raise SavedStateError(lacking(folder, SETTINGS))
        return Settings.saved(folder / SETTINGS)

    values = with_model({f"{name}_" if iskeyword(name) else name: value for name, value in values.items()})
    tables = {name: values.pop(name) for name in list(values) if name in registry()}
    for name, table in {"options": values.get("options", {}), **tables}.items():
        if not isinstance(table, dict):
            raise SettingsError(f"'{name}' must be a table of {method}'s own settings, not {table!r}")
    options = values.pop("options", {}) | tables.get(method, {})
    values = kind.arranged(values | {"options": options}, saved)
    options = values.pop("options", {})
    known = set(Settings.model_fields)
    own = set(kind.Options.model_fields)
    for name in list(values):
        if name in own and name not in known:
            options[name] = values.pop(name)
        elif name not in known:
            raise SettingsError(f"unknown setting '{name}' of {method}{suggestion(name, known | own)}")
    options = kind.Options.check(options).model_dump(mode="json", exclude_none=True)
    return Settings.check({**values, "method": method, "options": options})


def execute(
    settings: Settings,
    task: Task | None = None,
    folder: Path | None = None,
    observers: Sequence[Observer] = (),
    numbered: bool = False,
) -> Result:
    """Start a run. With `numbered`, in the first of FOLDER-001, FOLDER-002 … that is free."""
    if folder is None:
        simulation, history = _assemble(settings, task, None, observers)
        return _complete(simulation, history, None, _begin(simulation, None, observers))
    folder, made = claim(folder, numbered)
    try:
        simulation, history = _assemble(settings, task, folder, observers)
        privacy_of(simulation)  # that ε can be found is known before anything is trained
    except BaseException:
        with suppress(OSError):  # a run that cannot be leaves nothing behind
            for empty in made:
                empty.rmdir()
        raise
    if simulation.leads:
        write_atomically(folder / SETTINGS, settings.to_toml())
    return _complete(simulation, history, folder, _begin(simulation, folder, observers))


def claim(folder: Path, numbered: bool) -> tuple[Path, list[Path]]:
    """Make a folder for one run, and nobody else's; with it the folders that were made, the innermost first.

    Of several processes that do a run together the leader makes it, for all of them.
    """
    made: list[Path] = []

    def claimed() -> str:
        path, new = _claim(folder, numbered)
        made.extend(new)
        return str(path)

    return Path(led(claimed)), made


def _claim(folder: Path, numbered: bool) -> tuple[Path, list[Path]]:
    for number in count(1):
        path = folder.with_name(f"{folder.name}-{number:03}") if numbered else folder
        made = [parent for parent in (path, *path.parents) if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            if numbered:
                continue
            if not path.is_dir() or any(path.iterdir()):
                raise SavedStateError(
                    f"{path} exists and is not an empty folder; choose another --out, or: fedexperts resume {path}"
                ) from None
        return path, made
    raise AssertionError("there is always another number")


def resume(
    folder: str | Path, observers: Sequence[Observer] = (), data_dir: Path | None = None, task: Given | None = None
) -> Result:
    """Continue a run from its last checkpoint to its end; the result is as if it had never stopped.

    A run on a task of one's own making, or on clients that were given in Python, is given them again.
    """
    folder = Path(folder)
    if (folder / SUMMARY).exists():
        return load(folder, data_dir, task)
    settings = _saved_settings(folder, data_dir)
    simulation, history = _assemble(settings, _again(task, settings, folder), folder, observers)
    if (folder / STATE / MANIFEST).exists():
        simulation.restore()
        return _complete(simulation, history, folder)
    if simulation.leads:
        for name in (HISTORY, FETCHES):  # stopped before the first checkpoint: from the beginning
            (folder / name).unlink(missing_ok=True)
    return _complete(simulation, history, folder, _begin(simulation, folder, observers))


def load(folder: str | Path, data_dir: Path | None = None, task: Given | None = None) -> Result:
    """A finished run with its models. Clients that were given in Python are given again."""
    folder = Path(folder)
    record, settings = Record.load(folder), _saved_settings(folder, data_dir)
    simulation, _ = _assemble(settings, _again(task, settings, folder), folder, (), alone=True)
    simulation.restore()
    return Result(record, simulation, folder)


def _again(task: Given | None, settings: Settings, folder: Path) -> Task | None:
    """The task of a saved run, where clients are given again that were given in Python."""
    if task is None or isinstance(task, Task):
        return task
    names = read_labels(folder / LABELS)[0] if (folder / LABELS).exists() else None
    kept = settings.part(TaskSettings).model_dump(include={"seed", "validation_fraction", "vocabulary", "text_length"})
    return Task.of_clients(task, names, settings.common_model, settings.data, **kept)


def _saved_settings(folder: Path, data_dir: Path | None) -> Settings:
    if not (folder / SETTINGS).exists():
        raise SavedStateError(lacking(folder, SETTINGS))
    settings = Settings.saved(folder / SETTINGS)
    return settings if data_dir is None else Settings.check(settings.model_dump() | {"data_dir": data_dir})


def run_or_resume(
    settings: Settings, folder: Path, task: Task | None = None, observers: Sequence[Observer] = ()
) -> Record:
    """The run in the folder: read if it is finished, continued if it was interrupted, started if it is not there.

    A run that diverges is finished too: the same error comes again without training.
    """

    def known() -> str:
        if finished(settings, folder) is not None:
            return "finished"
        if not (folder / SETTINGS).exists():
            return "new"
        write_atomically(folder / SETTINGS, settings.to_toml())  # it may go on in another place
        return "begun"

    if (found := led(known)) == "finished":
        return Record.load(folder)
    try:
        if found == "begun":
            return resume(folder, observers, task=task).record
        return execute(settings, task, folder, observers).record
    except DivergedError as error:
        if torchrun.leads():
            write_atomically(folder / DIVERGED, str(error))
        raise


def finished(settings: Settings, folder: Path) -> Record | None:
    """The finished run in the folder, if there is one; where and how it was computed may differ from the settings."""
    if not (folder / SETTINGS).exists():
        return None
    found, asked = Settings.saved(folder / SETTINGS).defining(), settings.defining()
    if found["method"] == settings.method:
        found["options"] = method_class(settings.method).completed(found["options"])
    if differing := sorted(name for name in asked if found[name] != asked[name]):
        raise SavedStateError(
            f"{folder} holds a run with other settings ({', '.join(differing)}); choose another --out"
        )
    if (folder / DIVERGED).exists():
        raise DivergedError((folder / DIVERGED).read_text(encoding="utf-8"))
    return Record.load(folder) if (folder / SUMMARY).exists() else None


def _assemble(
    settings: Settings, task: Task | None, folder: Path | None, observers: Sequence[Observer], alone: bool = False
) -> tuple[Simulation, History]:
    """A run as it is before its first round: of this process `alone`, or of all that torchrun started."""
    ranks = None if alone else started()
    writes = folder if ranks is None or ranks.leads else None
    method = method_class(settings.method)(settings.part(TrainSettings), settings.options)
    task = task or Task.of(settings.part(TaskSettings))
    history, fetches = History(writes / HISTORY if writes else None), Fetches(writes / FETCHES if writes else None)
    state, watching = folder / STATE if folder else None, (history, fetches, *observers)
    if ranks is None:
        return Simulation(method, task, settings, watching, state), history
    return DividedSimulation(method, task, settings, watching, state, ranks=ranks), history


def _begin(simulation: Simulation, folder: Path | None, observers: Sequence[Observer]) -> Record | None:
    """Let a run that goes on from another's end do so. That one is made first, in a folder inside, if it is to be."""
    if (beginning := simulation.method.begins()) is None:
        return None
    if beginning.folder is not None:
        before = load(beginning.folder, simulation.settings.data_dir, simulation.task)
    else:
        settings = first_phase(simulation.settings, beginning)
        if folder is None:
            before = execute(settings, simulation.task, None, observers)
        else:
            run_or_resume(settings, folder / BEFORE, simulation.task, observers)
            before = load(folder / BEFORE, simulation.settings.data_dir, simulation.task)
    simulation.begin(before.simulation)
    return before.record


def first_phase(settings: Settings, beginning: Beginning) -> Settings:
    """The settings of the run that another one is to begin with, on the same task."""
    shared = settings.model_dump(exclude={*TrainSettings.model_fields, "method", "options"})
    return settings_for(beginning.method, {**shared, **beginning.values})


def _complete(
    simulation: Simulation, history: History, folder: Path | None, began_with: Record | None = None
) -> Result:
    task = simulation.task
    if folder is not None and simulation.leads:
        write_labels(folder / LABELS, task.dataset.class_names, task.client_names, task.counts)
    title, privacy = simulation.method.title or simulation.method.name, privacy_of(simulation)
    made_with = environment(simulation.device)  # now: sources may change while it runs
    simulation.run()
    record = Record(
        settings=simulation.settings,
        title=title,
        rows=history.rows,
        counts=task.counts,
        class_names=task.dataset.class_names,
        client_names=task.client_names,
        notes=[note for note in (simulation.note, simulation.method.note, *simulation.waves.notes) if note]
        + list(simulation.method.remarks(simulation.server))
        + (privacy.notes(title) if privacy else [])
        + ["drift: accuracy is that on the data that clients have in the round"] * bool(task.later)
        + [f"{task.dataset.name}: {task.dataset.note}"] * bool(task.dataset.note),
        environment=made_with | {"executor": simulation.executor.said},
        seconds=simulation.seconds,
        privacy=privacy,
        spent=simulation.profile.spent if simulation.profile else None,
        fingerprint=simulation.fingerprint,
        began_with=began_with,
        folder=folder,
    )

    def write() -> None:
        assert folder is not None
        for name, (header, rows) in simulation.method.tables(simulation.server).items():
            write_table(folder / name, header, ([f"{value:.6g}" for value in row] for row in rows))
        record.save(folder)

    if folder is not None:
        led(write)
    for observer in simulation.observers:
        observer.completed(folder)
    return Result(record, simulation, folder)
