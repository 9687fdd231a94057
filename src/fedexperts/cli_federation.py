"""Commands for federations over a network: their folders, their server and sites, their runs."""

import logging
import signal
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fedexperts.cli_results import scored, wrote
from fedexperts.completion import method_names
from fedexperts.errors import FederationError, SettingsError
from fedexperts.terminal import OPEN_ENDED, console, no_more

federation = typer.Typer(
    name="federation", help="Train over a network, each site with its own data.", no_args_is_help=True
)
Method = Annotated[str, typer.Option(help="a method, see `fedexperts methods`", autocompletion=method_names)]
Folder = Annotated[Path, typer.Argument(help="the folder that `federation new` made", show_default=False)]
SiteFolder = Annotated[Path, typer.Argument(help="the site's own folder", show_default=False)]
Part = Annotated[str | None, typer.Option(help="the client of the data that this site is: number or name")]


def server(folder: Folder) -> None:
    """Be the server of a federation: wait for sites and runs, until stopped. Started again, it goes on where it was.

    Example: fedexperts server consortium
    """
    with _extra():
        from fedexperts.federation.service import serve_runs
    _service()
    serve_runs(folder)


def site(
    context: typer.Context,
    folder: SiteFolder,
    part: Part = None,
    show_outgoing: Annotated[bool, typer.Option(help="list what would leave, and send nothing")] = False,
    method: Annotated[str, typer.Option(help="show-outgoing: of which method")] = "fedavg",
) -> None:
    """Be a site: attend the server, train on the site's own data, until stopped.

    Options of `fedexperts data` say which data; the same for all sites of a data set that is split among them. They
    may stand in `site.toml` too.
    Example: fedexperts site consortium/hospital-a --data digits --clients 3 --part 0
    """
    with _extra():
        from fedexperts.federation.service import attend_site
    data, own = _data(context, part)
    if show_outgoing:
        _show_outgoing(folder, data, method, own)
    else:
        _nothing(own)
        _service()
        attend_site(folder, data)


def _data(context: typer.Context, part: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Which data a site has, as its operator's options say, and the options that say something else."""
    from fedexperts.config import TaskSettings

    own = no_more(context.args)
    data: dict[str, Any] = {name: own.pop(name) for name in list(own) if name in TaskSettings.model_fields}
    return data | ({} if part is None else {"part": part}), own


def _nothing(own: dict[str, str]) -> None:
    if own:
        raise SettingsError(f"unknown option --{next(iter(own)).replace('_', '-')} of a site; see `fedexperts data`")


def _show_outgoing(folder: Path, data: dict[str, Any], method: str, own: dict[str, str]) -> None:
    from rich.table import Table

    from fedexperts.api import settings_for
    from fedexperts.federation.envelope import OWN_MODEL, Plan, PublicSpec
    from fedexperts.federation.local import Local
    from fedexperts.federation.own_model import said
    from fedexperts.federation.places import SiteSettings
    from fedexperts.federation.reading import agreed
    from fedexperts.federation.service import holding_of, model_in
    from fedexperts.methods import Owner

    site_settings = SiteSettings.of(folder)
    holding, model = holding_of(site_settings, data), model_in(site_settings, data)
    values = {**site_settings.data, **data, **own}
    for name in ("part", "model"):
        values.pop(name, None)
    settings, part = settings_for(method, values), holding.number
    told = None if holding.profile.reading else holding.tell(part)
    read = holding.read(part, agreed({part: told}, {part: site_settings.name}, settings) if told else None)
    spec = PublicSpec(
        id=part,
        model=said(model) or settings.model[part % len(settings.model)],
        shape=read.dataset.shape,
        classes=read.dataset.classes,
        samples=holding.profile.samples,
        clients=settings.clients,
        common=settings.common_model,
    )
    plan = Plan(run="outgoing", settings=settings.defining(), client=spec)
    local = Local(plan, read, {}, lambda *_: b"", site_settings.leaves, model=model)
    table = Table("tensor", "shape", "type", "bytes", box=None)
    for way, message in local.outgoing().items():
        table.add_row(f"[bold]{way}", "", "", f"[bold]{message.wire_bytes:,}")
        for name, tensor in message.tensors.items():
            size = tensor.numel() * tensor.element_size()
            kind = str(tensor.dtype).removeprefix("torch.")
            table.add_row(f"  {name}", str(tuple(tensor.shape)), kind, f"{size:,}")
        for name, number in message.numbers.items():
            table.add_row(f"  {name} = {number:g}", "", "number", "8")
    console.print(table)
    if told:
        console.print(f"told of this site's data before the first round: {told.said}", highlight=False)
    if spec.model == OWN_MODEL:
        seen = [f"{tensor.name} {tensor.shape}" for tensor in local.outline.extractor or ()]
        model_said = ", ".join([f"its {local.outline.features} features", *seen])
        console.print(f"told of this site's own model before the first round: {model_said}", highlight=False)
    private = sorted(local.method.owned(Owner.PRIVATE))
    console.print(f"never leaves: {', '.join([*private, 'all data'])}", highlight=False)


def node(folder: SiteFolder) -> None:
    """Serve a site's experts to its peers, and nothing else: beside Flower, whose processes do not stay.

    Example: fedexperts node consortium/hospital-a
    """
    with _extra():
        from fedexperts.federation.service import served
    _service()
    with served(folder):
        threading.Event().wait()


@federation.command("new")
def new_federation(
    folder: Annotated[Path, typer.Argument(help="a new folder", show_default=False)],
    sites: Annotated[str, typer.Option(help="names of the sites, with commas")],
    host: Annotated[
        str, typer.Option(help="the machine's name or address for all; change it in the files")
    ] = "localhost",
    port: Annotated[int, typer.Option(help="the server's port; those of the sites follow")] = 9440,
) -> None:
    """Write certificates, keys and settings for a server and its sites, and a README with the commands.

    Example: fedexperts federation new consortium --sites hospital-a,hospital-b,hospital-c
    """
    with _extra():
        from fedexperts.federation.places import README, new
    new(folder, tuple(name.strip() for name in sites.split(",")), host, port)
    console.print((folder / README).read_text(encoding="utf-8"), highlight=False, markup=False, soft_wrap=True)


@federation.command("run", context_settings=OPEN_ENDED)
def run_federation(
    context: typer.Context,
    folder: Folder,
    method: Method = "fedavg",
    name: Annotated[str | None, typer.Option(help="the run's name (default: the method and a number)")] = None,
    wait: Annotated[bool, typer.Option(help="show its progress until it is over")] = True,
) -> None:
    """Hand a run to the server, on its machine. Takes the options of `fedexperts run` and the method's own.

    The same command with the same --name shows the progress of a run again. A method that goes on from a run takes
    that one's name (--from), or makes it first.
    Example: fedexperts federation run consortium --method fedper --data digits --rounds 20
    """
    with _extra():
        from fedexperts.federation.runs import queue
        from fedexperts.federation.service import before
    run = queue(folder, method, no_more(context.args), name)
    first = before(run)
    for each in filter(None, (first, run)):
        console.print(f"run: {each}", highlight=False)
        if wait:
            _watch(folder, each)


def _watch(folder: Path, run: Path) -> None:
    """Show a run's progress until it is over, and then how it went."""
    from fedexperts.federation.runs import progress
    from fedexperts.federation.service import FAILED
    from fedexperts.measure import Record
    from fedexperts.report.table import comparison_table

    for line in progress(folder, run):
        console.print(line, highlight=False, markup=False)
    if (run / FAILED).exists():
        raise FederationError((run / FAILED).read_text(encoding="utf-8"))
    console.print(comparison_table([Record.load(run)]))
    console.print(f"results: {run}\npage: fedexperts report {run}", highlight=False)


@federation.command()
def status(folder: Folder) -> None:
    """Show which sites are there, where the run stands, and who is late.

    Example: fedexperts federation status consortium
    """
    from rich.table import Table

    with _extra():
        from fedexperts.federation.board import STATUS, Board
        from fedexperts.federation.certificates import expires
        from fedexperts.federation.hub import SERVER
        from fedexperts.federation.places import read_server
        from fedexperts.federation.service import attended
    settings, known = read_server(folder), Board.read(folder / SERVER / STATUS)
    if not known:
        console.print("the server has not been started yet")
        return
    if not attended(folder / SERVER):
        console.print("the server is not running; this is what it knew last")
    table = Table("site", "last heard of", "now", box=None)
    for name in settings.sites:
        ago = f"{max(0, time.time() - known['seen'][name]):.0f} s ago" if name in known.get("seen", {}) else "never"
        step = f"{known['doing']}, round {known['in_round']}" if "doing" in known else "is waited for"
        doing = step * (name in known.get("waiting", []) and "failed" not in known)
        table.add_row(name, ago, known.get("absent", {}).get(name, "") or doing)
    console.print(table)
    if "run" in known:
        accuracy = ""
        if "accuracy" in known:
            accuracy = f", test accuracy {100 * known['accuracy']:.2f} % in round {known['evaluated']}"
        over = ", finished" if known.get("finished") else f", failed: {known['failed']}" if "failed" in known else ""
        done = f"run {known['run']} ({known['method']}): round {known.get('round', 0)} of {known['rounds']}"
        console.print(f"{done}{accuracy}{over}", highlight=False)
    console.print(f"the server's certificate is good until {expires(folder / SERVER):%Y-%m-%d}", highlight=False)


@federation.command("export", context_settings=OPEN_ENDED)
def export_model(
    context: typer.Context,
    folder: SiteFolder,
    out: Annotated[Path, typer.Argument(help="a new folder for the model", show_default=False)],
    run: Annotated[str | None, typer.Option(help="the run's name (default: the one that was over last)")] = None,
    part: Part = None,
) -> None:
    """Write a site's model, on its machine, to use it elsewhere. Out of the site's folder, and nothing is sent.

    `fedexperts.load_exported(OUT)` and `fedexperts predict OUT FILE` use it. It takes the options of `fedexperts site`
    that say which data; they may stand in `site.toml` too.
    Example: fedexperts federation export consortium/hospital-a a-model --data digits --clients 3 --part 0
    """
    with _extra():
        from fedexperts.federation.exported import SiteModel
        from fedexperts.federation.service import site_in
    from fedexperts.export import check_new

    data, own = _data(context, part)
    _nothing(own)
    check_new(out)
    site, _ = site_in(folder, data)
    found = SiteModel.of(site, run)
    scored(found.origin, found.figures)
    wrote(found.export(out))


@federation.command()
def demo(
    method: Method = "fedmoe-da",
    rounds: Annotated[int, typer.Option(min=1, help="communication rounds")] = 10,
    out: Annotated[Path | None, typer.Option(help="where (default: a new folder in runs/)")] = None,
) -> None:
    """Start a server and three sites on this machine, train on the embedded digits, and stop them again.

    Example: fedexperts federation demo --rounds 5
    """
    with _extra():
        from fedexperts.federation.demo import started
        from fedexperts.federation.runs import queue
    from fedexperts.api import claim

    folder = out or claim(Path("runs") / "federation-demo", numbered=True)[0]
    values: dict[str, Any] = {"rounds": rounds, "lr": 0.1, "momentum": 0.9, "epochs": 5}
    if method == "fedmoe-da":  # few clients have few neighbours
        values |= {"asked": 1, "start": "own"}
    with started(folder) as data:
        run = queue(folder, method, data | values, None)
        console.print(f"server and three sites started, over TLS; logs: {folder}/*/log.txt", highlight=False)
        _watch(folder, run)


@federation.command("add")
def add_site(
    folder: Folder,
    site: Annotated[str, typer.Option(help="the new site's name")],
    host: Annotated[str | None, typer.Option(help="its machine's name or address (default: the server's)")] = None,
) -> None:
    """Add a site between two runs: its certificate, its folder, and its name on everybody's list.

    Example: fedexperts federation add consortium --site hospital-d
    """
    with _extra():
        from fedexperts.federation.members import admit
    elsewhere = admit(folder, site, host)
    console.print(f"{folder / site}: give this folder to {site}", highlight=False)
    _tell(f'add "{site}" to', elsewhere)


@federation.command("remove")
def remove_site(
    folder: Folder,
    site: Annotated[str, typer.Option(help="the site that leaves")],
) -> None:
    """Take a site off everybody's list between two runs; its certificate is of no use then. Its folder stays.

    Example: fedexperts federation remove consortium --site hospital-d
    """
    with _extra():
        from fedexperts.federation.members import dismiss
    elsewhere = dismiss(folder, site)
    console.print(f"{site} is on no list any more; its folder, with its private state, stays", highlight=False)
    _tell(f'take "{site}" off', elsewhere)


def _tell(change: str, elsewhere: list[str]) -> None:
    """What is left to do by hand."""
    if elsewhere:
        console.print(f"at {', '.join(elsewhere)}: {change} `peers` in site.toml, which is not here", highlight=False)
    console.print("start the server again, and the sites whose lists have changed", highlight=False)


@federation.command()
def renew(
    folder: Folder,
    member: Annotated[str, typer.Option(help="a site, or 'server'")],
) -> None:
    """Make a new certificate for a member, good for a year; the member takes it in when it is started again.

    Example: fedexperts federation renew consortium --member hospital-a
    """
    with _extra():
        from fedexperts.federation import certificates
        from fedexperts.federation.hub import SERVER
        from fedexperts.federation.places import AUTHORITY, read_server
    if member not in (members := (SERVER, *read_server(folder).sites)):
        raise FederationError(f"{folder} has no member '{member}', but {', '.join(members)}")
    own = folder / member
    certificates.renew(folder / AUTHORITY, own, member)
    files = ", ".join((certificates.CERTIFICATE, certificates.KEY, certificates.AUTHORITY))
    console.print(f"{own}: good until {certificates.expires(own):%Y-%m-%d}", highlight=False)
    console.print(f"{member} needs {files} in its folder, and to be started again", highlight=False)


def _service() -> None:
    """Let the process go on until it is asked to end, and log to the terminal."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(*_: object) -> None:
    raise SystemExit(0)


class _extra:  # noqa: N801 - reads like a word
    """Within it a missing package is the missing extra."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            raise SettingsError(f"{error.name} is missing: pip install 'fedexperts[federation]'") from None
