"""Experts and who shares them, as sections: a function for each question, from records to sections."""

from collections.abc import Iterator, Sequence
from math import comb

import numpy as np

from fedexperts import analyses
from fedexperts.analyses import GATES, Likeness, Matrix, SampleTable
from fedexperts.measure import Record
from fedexperts.methods import Channel
from fedexperts.report import peer_figures as drawn
from fedexperts.report.runs import Line, line_up, lines
from fedexperts.report.section import Section
from fedexperts.report.table import rough, short
from fedexperts.report.traffic_figures import traffic_over_rounds
from fedexperts.report.tree_sections import traffic_by_size

EDGES = 60
FEW_LINES = 5  # more than these cannot be told in a sentence
MADE_OF = "is made of"
BY_CLASS = "ordered by the clients' most frequent class (of equally frequent ones the first)"


def matrix(record: Record, experts: bool = False, name: str | None = None) -> Iterator[Section]:
    """Of whose experts a client's are mixed; with `experts` also each by itself; nothing before `analyse matrix`."""
    found = Matrix.load(record.folder)
    if found is None:
        return
    name = name or record.title
    dominant = analyses.dominant_classes(record.counts)
    shares = found.by_client(len(dominant))
    own, like = float(np.nanmean(np.diag(shares))), analyses.likeness(shares, dominant)
    yield Section(
        f"Who is mixed of whom: {name}",
        "The last aggregation matrix. A row is a client, a column a client whose experts go into its own: the part "
        f"that they have in the mixture; a row makes 1. On the right the same, {BY_CLASS}: if those with like data "
        "find each other, the squares along the diagonal are strong.",
        drawn.mixture(shares, list(map(str, range(len(dominant)))), dominant, record.class_names, MADE_OF),
        f"A client's experts are on average {rough(own)} its own. "
        + alike_in_words(like, "of what comes from others is"),
    )
    if experts:
        names, whole = found.by_expert()
        yield Section(
            f"Which expert is mixed of which: {name}",
            "As above, for every single expert: 3.1 is client 3's expert 1.",
            drawn.mixture(whole, [f"{k}.{j}" for k, j in names], dominant[names[:, 0]], record.class_names, MADE_OF),
        )


def experts(record: Record, chosen: Sequence[int] = (), name: str | None = None) -> Iterator[Section]:
    """Which expert is used for which class, by all and by each of some clients; nothing before `gates.csv` is there."""
    table = SampleTable.load(record.folder, GATES, "experts")
    if table is None:
        return
    name = name or record.title
    times = analyses.times_chosen(table, *record.counts.shape)
    together = times.sum(axis=0)
    yield Section(
        f"Experts of {name}, by class",
        "For which part of a class's test samples, of all clients, an expert has the largest weight: a column makes 1. "
        "Experts of different clients are taken together by their number.",
        drawn.chosen_by_class(analyses.shares_chosen(together), table.names, record.class_names),
        _use_in_words(times, table.names),
    )
    if chosen:
        yield Section(
            f"Experts of {name}, by client and class",
            "The same for single clients; a class of which the client has no test samples is empty.",
            drawn.chosen_by_class(
                analyses.shares_chosen(times)[chosen].reshape(-1, times.shape[2]),
                [f"client {client}: {expert}" for client in chosen for expert in table.names],
                record.class_names,
            ),
        )


def peers(record: Record, edges: int = EDGES, name: str | None = None) -> Iterator[Section]:
    """Who fetches from whom; nothing where nobody did."""
    found = analyses.fetched(record)
    if found is None:
        return
    dominant = analyses.dominant_classes(record.counts)
    pairs = found.pairs()
    shown = f"the {edges} most frequent of {len(pairs)} pairs" if len(pairs) > edges else "all pairs"
    (one, other, times), given = pairs[0], found.counts.sum(axis=0)
    yield Section(
        f"Who fetches from whom: {name or record.title}",
        f"Clients in a circle, {BY_CLASS}, which stands outside. The wider a line, the more often one of the two has "
        f"fetched from the other in rounds {found.first} to {found.last}; {shown}.",
        drawn.talk(found, dominant, record.class_names, edges),
        f"{found.counts.sum():,} fetches between {len(pairs)} of {comb(len(dominant), 2)} pairs of clients, "
        f"most often clients {one} and {other} ({times:,}); asked most: client {given.argmax()} ({given.max():,}). "
        + alike_in_words(analyses.likeness(found.counts, dominant), "of the fetches are"),
    )


def traffic(records: Sequence[Record]) -> Section:
    """Bytes through the server and between clients, over the rounds."""
    found = lines(line_up(records))
    growing = [line for line in found if traffic_by_size(line.records)]
    told = found if len(found) <= FEW_LINES else growing
    return Section(
        "Traffic over the rounds",
        "What all clients together send in a round (left) and have sent so far (right): full lines go through the "
        "server, up and down, dotted ones directly between clients. What sends nothing has no line."
        + " On the far right, how many sub-experts a shared expert has that grows."
        * bool(growing),
        traffic_over_rounds(found),
        "; ".join(map(_sent, told)) + "." if told else "",
    )


# --- in words


def alike_in_words(like: Likeness | None, of_what: str) -> str:
    if like is None:
        return "Nothing comes from others."
    return (
        f"{rough(like.found)} {of_what} between clients with the same most frequent class; by chance it would be "
        f"{rough(like.by_chance)}."
    )


def _use_in_words(times: np.ndarray, names: Sequence[str]) -> str:
    together = times.sum(axis=0)
    of_all = together.sum(axis=1) / together.sum()
    most, least = of_all.argmax(), of_all.argmin()
    if of_all[most] == 1:
        return f"Every sample goes to {names[most]}: the others are not used."
    on_clients = analyses.agreement(times.sum(axis=2, keepdims=True))
    return (
        f"Chosen most: {names[most]}, for {rough(of_all[most])} of the samples; least: {names[least]}, for "
        f"{rough(of_all[least])}. {rough(analyses.agreement(together))} of the samples go where most of their "
        f"class go ({rough(of_all[most])} if classes made no difference); on their own client, "
        f"{rough(analyses.agreement(times))} ({rough(on_clients)})."
    )


def _sent(line: Line) -> str:
    def mean(*channels: Channel) -> float:
        return float(np.mean([sum(record.totals[f"{c}_bytes"] for c in channels) for record in line.records]))

    server, direct = mean(Channel.UP, Channel.DOWN) / 1e6, mean(Channel.PEER) / 1e6
    said = f"{line.run.name}: {short(server)} MB through the server, {short(direct)} MB between clients"
    return said + traffic_by_size(line.records)
