"""The comparison as a table for a paper."""

from collections.abc import Callable, Sequence
from statistics import mean, stdev

from fedexperts.measure import Figure, Kind
from fedexperts.report.facts import partition
from fedexperts.report.runs import Line, Run, lines

KINDS: tuple[Kind, ...] = ("selected", "last", "peak")
SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "α": r"$\alpha$", "μ": r"$\mu$", "–": "--",
}  # fmt: skip


def latex_table(runs: Sequence[Run]) -> str:
    """A table with booktabs, best selected accuracy first; the best of each column is bold.

    Several seeds: their mean ± their standard deviation. One seed: the mean ± the standard deviation over its clients.
    """
    found = sorted(lines(runs), key=lambda line: -mean(line.selected))
    repeated = any(len(line.runs) > 1 for line in found)
    readings: list[tuple[Kind, Callable[[Figure], float]]] = [(kind, lambda figure: figure.mean) for kind in KINDS]
    readings.append(("selected", lambda figure: figure.worst_tenth))
    columns = [
        _column(found, kind, value, repeated, spread=place < len(KINDS)) for place, (kind, value) in enumerate(readings)
    ]
    headers = ["method", *KINDS, r"worst 10\,\%"]
    body = [" & ".join([_name(line), *cells]) + r" \\" for line, *cells in zip(found, *columns, strict=True)]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_caption(found, repeated)}}}",
            r"  \begin{tabular}{l" + "r" * len(columns) + "}",
            r"    \toprule",
            f"    {' & '.join(headers)} \\\\",
            r"    \midrule",
            *(f"    {line}" for line in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _name(line: Line) -> str:
    return escape(line.run.name.removesuffix(f", {len(line.runs)} seeds"))  # the caption says that


def escape(text: str) -> str:
    """Text as LaTeX shows it."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def _column(
    found: Sequence[Line], kind: Kind, value: Callable[[Figure], float], repeated: bool, spread: bool
) -> list[str]:
    cells = []
    figures = [[record.figures[kind] for record in line.records] for line in found]
    means = [round(100 * mean(map(value, own)), 2) for own in figures]
    for own, middle in zip(figures, means, strict=True):
        around = _spread([value(one) for one in own], own[0].std, repeated) if spread or repeated else None
        best = rf"\mathbf{{{middle:.2f}}}" if middle == max(means) and len(means) > 1 else f"{middle:.2f}"
        cells.append(f"${best}" + (rf" \pm {100 * around:.2f}" if around is not None else "") + "$")
    return cells


def _spread(values: Sequence[float], over_clients: float, repeated: bool) -> float | None:
    if not repeated:
        return over_clients
    return stdev(values) if len(values) > 1 else None


def _caption(found: Sequence[Line], repeated: bool) -> str:
    settings = found[0].run.record.settings
    seeds = sorted({record.settings.seed for line in found for record in line.records})
    over = f"{len(seeds)} seeds" if repeated else f"the clients (one run, seed {seeds[0]})"
    rounds = sorted({line.run.record.settings.rounds for line in found})
    clients = sorted({line.run.record.settings.clients for line in found})
    return (
        f"Test accuracy in \\%, mean over the clients $\\pm$ standard deviation over {escape(over)}: in the round that "
        "was best on validation data (selected), in the last round, and the best over all rounds on test data (peak). "
        "Worst 10\\,\\%: mean of the worst tenth of the clients, selected. "
        f"{escape(settings.data)}, {escape(partition(settings))}, {' or '.join(map(str, clients))} clients, "
        f"{' or '.join(map(str, rounds))} rounds."
    )
