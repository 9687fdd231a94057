"""The comparison of runs as a table, for the terminal and for the page."""

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import mean, stdev

import numpy as np
from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from fedexperts.analyses import Point, Sweep
from fedexperts.engine import TRACE
from fedexperts.measure import MEANING, Record, common_target, cost_until
from fedexperts.methods import Channel
from fedexperts.report.runs import Run, line_up, ranked, sweep_looks

PREFIXES = {"M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def comparison_table(records: Sequence[Record]) -> Table:
    """One line per run, best selected mean first; made for a terminal of 80 to 100 columns."""
    runs = line_up(records)
    lines = explanation(runs)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
        caption=Text("\n".join(["", *lines, *notes(records)])),
        caption_justify="left",
        min_width=max(map(len, lines)),  # a caption is folded at the table's width
    )
    cells = columns(runs)
    # All columns may fold: in a narrow terminal the table grows longer, but no digit is lost.
    for header in cells:
        justify: JustifyMethod = "left" if header == "method" else "right"
        style = "bold" if header == "selected" else ""
        table.add_column(header, justify=justify, style=style, overflow="fold")
    for line in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, line))
    return table


def cost_table(records: Sequence[Record], target: float | None = None) -> Table:
    """Rounds, traffic and FLOPs of each run until a mean test accuracy in percent."""
    target = common_target(records) if target is None else target
    costs = [cost_until(record, target) for record in records]
    byte = prefix_for(max(cost.bytes if cost else 0 for cost in costs), "MGTPE")
    flop = prefix_for(max(cost.flops if cost else 0 for cost in costs), "GTPE")
    headers = [f"until {target:g} %", "rounds", f"{byte}B sent", "MB of a client", f"training {flop}FLOP"]
    table = _plain(*headers)
    for run, cost in zip(line_up(records), costs, strict=True):
        if cost is None:
            table.add_row(Text(run.name), "not reached", "–", "–", "–")
            continue
        sent = cost.bytes / PREFIXES[byte], cost.bytes / run.record.settings.clients / 1e6
        table.add_row(Text(run.name), str(cost.round), *map(short, sent), short(cost.flops / PREFIXES[flop]))
    return table


def spent_table(record: Record) -> Table | None:
    """Where the time of a run went, if that was asked for."""
    if (spent := record.spent) is None:
        return None
    columns = {"host": spent.host, "device": spent.device} if spent.device else {"": spent.host}
    headers = [f"{where} {unit}".strip() for where in columns for unit in ("s", "%")]
    table = _plain(f"{record.title}, {spent.rounds} rounds", *headers)
    for name in spent.host:
        cells = ((short(found[name]), f"{100 * found[name] / sum(found.values()):.1f}") for found in columns.values())
        table.add_row(name, *chain(*cells))
    table.add_row("all", *chain(*((short(sum(found.values())), "100") for found in columns.values())))
    said = ["", "data = batches, clients brought in", "saving = clients put away, checkpoints, history"]
    if spent.device:
        said += ["host = until work was queued, or read", "device = until it was done"]
    if record.folder is not None:
        said.append(f"{TRACE} in its folder is for https://ui.perfetto.dev")
    table.caption, table.caption_justify = Text("\n".join(said)), "left"
    table.min_width = max(map(len, said))
    return table


def sweep_table(sweep: Sweep) -> Table:
    """A line for each method, a column for each value of the setting."""
    values = sorted({point.value for line in sweep.lines for point in line.points})
    table = _plain(sweep.setting, *(f"{value:g}" for value in values))
    for line, run in zip(sweep.lines, sweep_looks(sweep), strict=True):
        at = {point.value: _point(point) for point in line.points}
        level = "–" if line.level is None else percent(line.level)
        table.add_row(Text(run.name), *(at.get(value, level) for value in values))
    return table


def _point(point: Point) -> str:
    return percent(point.mean) + (f" ± {percent(point.std)}" if point.std is not None else "")


def _plain(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column(first, overflow="fold")
    for header in others:
        table.add_column(header, justify="right", overflow="fold")
    return table


def columns(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Headers (with a line break where the column is narrow) and their cells, best run first."""
    runs = ranked(runs)
    table = {"method": [run.name for run in runs]}
    for kind in MEANING:
        table[kind] = [percent(run.record.figures[kind].mean) for run in runs]
    table["std"] = [percent(run.selected.std) for run in runs]
    table["worst\n10 %"] = [percent(run.selected.worst_tenth) for run in runs]
    table["weigh-\nted"] = [percent(run.selected.weighted) for run in runs]
    sent = {channel: [run.record.totals[f"{channel}_bytes"] for run in runs] for channel in Channel}
    prefix = prefix_for(max(map(max, sent.values())), "MGTPE")
    for channel in (Channel.UP, Channel.DOWN, Channel.PEER):
        if channel is not Channel.PEER or any(sent[channel]):
            table[f"{channel}\n{prefix}B"] = [short(size / PREFIXES[prefix]) for size in sent[channel]]
    flops = [run.record.totals["flops"] for run in runs]
    prefix = prefix_for(max(flops), "GTPE")
    table[f"train\n{prefix}FLOP"] = [short(number / PREFIXES[prefix]) for number in flops]
    table["time\ns"] = [short(run.record.seconds) if run.record.seconds else "–" for run in runs]
    gains = [run.gain for run in runs]
    if any(gain is not None for gain in gains):
        table["gain"] = ["–" if gain is None else f"{gain:+.2f}" for gain in gains]
    return table


def gain_columns(runs: Sequence[Run]) -> dict[str, list[str]]:
    """For runs with Standalone beside them: for how many clients they are better or worse, and for whom most."""
    points = [np.round(run.gains, 2) + 0.0 for run in runs]  # + 0.0: never "-0.00"
    return {
        "method": [run.name for run in runs],
        "mean\ngain": [f"{run.gain:+.2f}" for run in runs],
        "clients\nbetter": [str((gains > 0).sum()) for gains in points],
        "\nequal": [str((gains == 0).sum()) for gains in points],
        "\nworse": [str((gains < 0).sum()) for gains in points],
        "largest\ngain": [f"{gains.max():+.2f}" if gains.max() > 0 else "–" for gains in points],
        "of\nclient": [
            _client(run, int(gains.argmax())) if gains.max() > 0 else "–"
            for run, gains in zip(runs, points, strict=True)
        ],
        "largest\nloss": [f"{gains.min():+.2f}" if gains.min() < 0 else "–" for gains in points],
        "of \nclient": [
            _client(run, int(gains.argmin())) if gains.min() < 0 else "–"
            for run, gains in zip(runs, points, strict=True)
        ],
    }


def _client(run: Run, number: int) -> str:
    name = str(run.record.client_names[number] if run.record.client_names else number)
    return name if len(name) <= 24 else f"{name[:12]}…{name[-11:]}"


def table_csv(cells: Mapping[str, Sequence[str]]) -> str:
    """The comparison as a file: headers in one line, accuracies in percent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header.replace("-\n", "").replace("\n", " ") for header in cells)
    writer.writerows(zip(*cells.values(), strict=True))
    return text.getvalue()


def explanation(runs: Sequence[Run]) -> list[str]:
    """What the columns mean, a line each."""
    lines = ["Test accuracy in %, mean over clients:"]
    lines += [f"{kind} = {meaning}" for kind, meaning in MEANING.items()]
    lines.append("std, worst 10 %, mean weighted by samples = over the clients, of selected")
    lines.append("up, down, peer = sent to the server, by the server, between clients")
    if any(run.gain is not None for run in runs):
        lines.append("gain = selected over Standalone, in points")
    return lines


def notes(records: Sequence[Record]) -> list[str]:
    """What the runs have to say, each thing once."""
    return [f"Note: {note}" for note in dict.fromkeys(note for record in records for note in record.notes)]


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def over_seeds(fractions: Sequence[float]) -> str:
    """The mean in percent and, of several seeds, the standard deviation."""
    return percent(mean(fractions)) + (f" ± {percent(stdev(fractions))}" if len(fractions) > 1 else "")


def rough(share: float) -> str:
    """In whole percent, as in a sentence."""
    return f"{100 * share:.0f} %"


def prefix_for(largest: float, prefixes: str) -> str:
    """The first unit in which the largest value has at most four digits before the point."""
    return next((prefix for prefix in prefixes if largest < 1e4 * PREFIXES[prefix]), prefixes[-1])


def short(value: float) -> str:
    """Three digits, or more where they stand before the point."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}" if value else "0"
