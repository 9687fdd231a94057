"""Figures with what they show and how to read them: a function for each question, from records to sections."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedexperts import analyses
from fedexperts.analyses import GATES, REPRESENTATIONS, SampleTable
from fedexperts.measure import MEANING, Kind, Record, common_target, cost_until
from fedexperts.report import analysis_figures as drawn
from fedexperts.report.figures import accuracy_curves
from fedexperts.report.runs import Line, line_up, lines, listed, sweep_looks
from fedexperts.report.section import Section
from fedexperts.report.table import over_seeds

READ_LABELS = "A row is a client, a column a class: the stronger a cell, the more samples of the class it has."
SHOWN_CLIENTS = 12
FEW_LINES = 5  # more than these cannot be told in a sentence


def convergence(records: Sequence[Record], samples: bool = False) -> Section:
    """Accuracy over the rounds (Figure 11); clients may count by their test samples."""
    found = lines(line_up(records))
    repeated = any(len(line.records) > 1 for line in found)
    band = (
        "A line of several seeds is their mean, its band ± one standard deviation over the seeds; the marker "
        "of a single run is its selected round."
        if repeated
        else f"The band is ± one standard deviation over {_over(samples)}, the marker is the selected round."
    )
    return Section(
        "Accuracy over the rounds",
        f"Mean test accuracy over {_over(samples)} after each round. {band} A name in the legend hides or shows its "
        "run.",
        accuracy_curves(records, samples),
        f"Selected accuracy: {'; '.join(_selected(line, samples) for line in found)}."
        if repeated and len(found) <= FEW_LINES
        else "",
    )


def clients(record: Record, other: Record, kind: Kind = "selected") -> Section:
    """Every client under one method against another (Figure 4)."""
    run, reference = line_up([record, other])
    found = analyses.difference(record, other, kind)
    return Section(
        f"{run.name} against {reference.name}, client by client",
        f"A bar is a client: how many points of test accuracy {run.name} gives it more (up) or less (down), "
        f"{MEANING[kind].partition(':')[0]}.",
        drawn.client_differences(run, reference, found),
        f"{run.name} is better for {found.better} of {len(found.points)} clients, equal for {found.equal}, "
        f"worse for {found.worse}; {found.points.mean():+.2f} points on average.",
    )


def cost(records: Sequence[Record], target: float | None = None) -> Section:
    """Rounds, bytes and FLOPs until an accuracy (Figure 6)."""
    runs = line_up(records)
    target = common_target(records) if target is None else target
    costs = [cost_until(record, target) for record in records]
    reached = [(run, cost) for run, cost in zip(runs, costs, strict=True) if cost is not None]
    missed = [run.name for run, cost in zip(runs, costs, strict=True) if cost is None]
    finding = f"None of these runs reaches {target:g} %."
    if reached:
        first = min(cost.round for _, cost in reached)
        names = listed([run.name for run, cost in reached if cost.round == first])
        finding = f"First at {target:g} %: {names}, after {first} round{'s' * (first > 1)}."
        finding += f" Not reached by {', '.join(missed)}." if missed else ""
    return Section(
        f"What {target:g} % costs",
        f"What all clients together had spent at the end of the first evaluated round with a mean test accuracy of "
        f"{target:g} %: shorter is cheaper. Traffic is up, down and between clients; FLOPs are of local training.",
        drawn.cost_bars(runs, costs),
        finding,
    )


def sweep(
    records: Sequence[Record],
    over: str | None = None,
    kind: Kind = "selected",
    called: str = "",
    samples: bool = False,
) -> Section:
    """Accuracy against the setting in which the runs differ (Figures 7 and 8); `called`: as a paper has it."""
    found = analyses.sweep(records, over, kind, samples)
    called = called or found.setting.replace("_", " ")
    seeds = any(point.seeds > 1 for line in found.lines for point in line.points)
    level = any(line.level is not None for line in found.lines)
    return Section(
        f"Accuracy against {called}",
        f"Mean test accuracy over {_over(samples)}, {MEANING[kind].partition(':')[0]}."
        + " A point with several seeds is their mean, the band ± one standard deviation over them." * seeds
        + " A level line is a method that has no such setting." * level,
        drawn.sweep_lines(found, sweep_looks(found), called),
    )


def gates(record: Record, chosen: Sequence[int] | None = None, name: str | None = None) -> Iterator[Section]:
    """How experts are weighed, by client, by class and by both (Figures 9 and 10); nothing before `analyse gates`."""
    table = SampleTable.load(record.folder, GATES, "gates")
    if table is None:
        return
    name = name or record.title
    everybody = np.unique(table.clients).tolist()
    chosen = everybody[:SHOWN_CLIENTS] if chosen is None else chosen
    experts = [len(table.names) - 1] if len(table.names) <= 2 else list(range(len(table.names)))
    of_what = f"of the {table.names[-1]} expert" if len(experts) == 1 else "of each expert"
    some = f", {len(chosen)} of {len(everybody)} clients" if len(chosen) < len(everybody) else ""
    yield Section(
        f"Gate of {name}, by client{some}",
        f"The distribution of the weight {of_what} over a client's own test samples, after the last round; the box "
        "inside holds the middle half of them. At 1 the expert decides alone, at 0 it is not heard.",
        drawn.weights_by_client(table, chosen, experts),
        _weights_in_words(table, experts),
    )
    yield Section(
        f"Gate of {name}, by class",
        f"The weight {of_what} over all clients' test samples of a class: the box holds the middle half, the whiskers "
        "all of them.",
        drawn.weights_by_class(table, record.class_names, experts),
    )
    if len(experts) == 1:
        columns, across = record.class_names, "class"
        means = _means(table.values[:, -1], table.clients, table.classes, (len(record.counts), len(columns)))
    else:
        columns, across = table.names, "expert"
        flat = (np.repeat(table.clients, len(columns)), np.tile(np.arange(len(columns)), len(table.clients)))
        means = _means(table.values.ravel(), *flat, (len(record.counts), len(columns)))
    share = 1 / len(table.names)
    yield Section(
        f"Gate of {name}, by client and {across}",
        f"The mean weight {of_what} over a client's test samples: blue is above an equal share ({share:.2f}), orange "
        "below it; a cell without samples is empty.",
        drawn.mean_weights(means, columns, across, share),
    )


def representations(record: Record, name: str | None = None) -> Iterator[Section]:
    """The models' features in a plane (Figure 5); nothing before `analyse tsne`."""
    table = SampleTable.load(record.folder, REPRESENTATIONS, "tsne")
    if table is None:
        return
    yield Section(
        f"Representations of {name or record.title}",
        f"{len(table.clients)} test samples of {len(np.unique(table.clients))} clients, as each client's own model "
        "sees them after the last round, laid into a plane by t-SNE. Near points are alike to the models; distances "
        "between groups, and the axes, mean nothing.",
        drawn.plane(table, record.class_names),
    )


# --- in words


def _selected(line: Line, samples: bool) -> str:
    return f"{line.run.name}: {over_seeds([record.accuracy('selected', samples) for record in line.records])} %"


def _over(samples: bool) -> str:
    """What a mean is over."""
    return "the clients, weighted by their test samples" if samples else "the clients"


def _weights_in_words(table: SampleTable, experts: Sequence[int]) -> str:
    shape = int(table.clients.max()) + 1, int(table.classes.max()) + 1
    by_client = {
        expert: _means(table.values[:, expert], table.clients, np.zeros_like(table.clients), (shape[0], 1))
        for expert in experts
    }
    if len(experts) > 1:
        of_each = [
            f"{table.names[e]} {table.values[:, e].mean():.2f} ({_range(means)} by client)"
            for e, means in by_client.items()
        ]
        return f"Mean weights: {', '.join(of_each)}."
    weights = table.values[:, experts[0]]
    by_both = _means(weights, table.clients, table.classes, shape)
    return (
        f"The {table.names[experts[0]]} expert weighs {weights.mean():.2f} on average (standard deviation "
        f"{weights.std():.2f} over the samples), {_range(by_client[experts[0]])} by client, "
        f"{_range(by_both)} by client and class."
    )


def _range(means: np.ndarray) -> str:
    return f"{np.nanmin(means):.2f} to {np.nanmax(means):.2f}"


def _means(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The mean of the values in each cell, nan where there are none."""
    sums, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, (rows, columns), values)
    np.add.at(counts, (rows, columns), 1)
    means: np.ndarray = np.divide(sums, counts, out=np.full(shape, np.nan), where=counts > 0)
    return means
