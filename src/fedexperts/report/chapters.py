"""The page of some runs, question by question: which sections stand in which of its chapters."""

from collections.abc import Iterator, Sequence

from fedexperts import analyses
from fedexperts.analyses import Growth
from fedexperts.measure import Record, task_of
from fedexperts.report import comparison_figures as drawn
from fedexperts.report import peer_sections, pool_sections, sections, tree_sections
from fedexperts.report.facts import partition
from fedexperts.report.figures import client_accuracy, label_picture, loss_curves, own_names
from fedexperts.report.runs import Run, line_up, listed
from fedexperts.report.section import Section
from fedexperts.report.traffic_figures import traffic


def everything(records: Sequence[Record]) -> Iterator[Section]:
    """All sections, in the order of the page."""
    runs = line_up(records)
    yield from result(runs)
    yield from course(records)
    yield from clients(runs)
    yield from costs(runs)
    yield from labels(records)
    for run in runs:
        yield from inside(run)


def result(runs: Sequence[Run]) -> Iterator[Section]:
    """Who is how good."""
    yield Section(
        "At a glance",
        "A row is a run, the best first. The full mark is its selected accuracy, the bar ± one standard deviation over "
        "the clients, the cross the mean of the worst tenth of them; open marks are the last round and the peak.",
        drawn.standing(runs),
    )
    records = [run.record for run in runs]
    if len(analyses.swept(records)) == 1:
        yield sections.sweep(records)


def course(records: Sequence[Record]) -> Iterator[Section]:
    """How they got there."""
    yield sections.convergence(records)
    yield Section(
        "Training loss",
        "Mean loss of the sampled clients on their own training data. Different methods may mean different "
        "things by their loss: compare how it falls, not how low it is.",
        loss_curves(records),
    )


def clients(runs: Sequence[Run]) -> Iterator[Section]:
    """Who gained, and who lost."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.gains:
            called = own_names(run.record) or map(str, range(len(run.gains)))
            groups.setdefault(tuple(called), []).append(run)
    for names, together in groups.items():
        more = f": {listed([run.name for run in together])}" if len(groups) > 1 else ""
        yield Section(
            f"Every client against Standalone{more}",
            "A row is a run, a column a client, in the selected round: blue gains over training alone, orange loses.",
            drawn.gain_map(together, names),
        )
    records = [run.record for run in runs]
    if any(run.gains for run in runs):
        about = "A point is a client in the selected round: above the line it gains over training alone."
    else:
        about = "A point is a client in the selected round. Beside a Standalone run this shows what it gains."
    yield Section("Client by client", about, client_accuracy(records))


def costs(runs: Sequence[Run]) -> Iterator[Section]:
    """What it took."""
    records = [run.record for run in runs]
    yield Section(
        "What the whole runs cost",
        "All rounds and all clients together: what was sent, by channel; the floating-point operations of local "
        "training; and how long it took on the machine at hand. Evaluation is not counted.",
        drawn.spent_bars(runs),
    )
    if len(records) > 1 and len({task_of(record).model_copy(update={"seed": 0}) for record in records}) == 1:
        yield sections.cost(records)
    if any(record.totals["up_bytes"] + record.totals["down_bytes"] for record in records):
        yield Section(
            "Accuracy for traffic",
            "How far a run has come with what went through the server, up and down: further left is cheaper, "
            "higher is better. A level line sends nothing. Traffic between clients is not counted here.",
            traffic(records),
        )
    if any(record.totals["peer_bytes"] or Growth.load(record) is not None for record in records):
        yield peer_sections.traffic(records)


def labels(records: Sequence[Record]) -> Iterator[Section]:
    """Who has which data: a picture for each way in which data were split."""
    splits: dict[tuple[str, int, bytes], Record] = {}
    for one in records:
        splits.setdefault((one.settings.data, one.settings.seed, one.counts.tobytes()), one)
    names = [f"{record.settings.data}, seed {record.settings.seed}" for record in splits.values()]
    for name, record in zip(names, splits.values(), strict=True):
        more = f", {partition(record.settings)}" if names.count(name) > 1 else ""
        yield Section(
            f"Who has which labels: {name}{more}",
            sections.READ_LABELS,
            label_picture(record.counts, record.class_names, client_names=own_names(record)),
        )


def inside(run: Run) -> Iterator[Section]:
    """The method's own pictures, as far as the run and analyses have left what they are made of."""
    record, name = run.record, run.name
    yield from pool_sections.mixture(record, name=name)
    yield from pool_sections.pool(record, name=name)
    yield from tree_sections.tree(record, name=name)
    yield from tree_sections.spectra(record, name=name)
    yield from tree_sections.use(record, name=name)
    yield from sections.gates(record, name=name)
    yield from peer_sections.experts(record, name=name)
    yield from peer_sections.matrix(record, name=name)
    yield from peer_sections.peers(record, name=name)
    yield from sections.representations(record, name=name)
