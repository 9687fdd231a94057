"""FedEMoE's shared expert, as sections: a function for each question, from records to sections."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedexperts import analyses
from fedexperts.analyses import NORMAL, OVER, UNDER, Growth, Spectrum, Use
from fedexperts.measure import Record
from fedexperts.methods.evolution import Rules
from fedexperts.methods.fedemoe import FedEMoE
from fedexperts.report import tree_figures as drawn
from fedexperts.report.section import Section
from fedexperts.report.table import rough, short
from fedexperts.report.traffic_figures import server_megabytes


def tree(record: Record, name: str | None = None) -> Iterator[Section]:
    """The tree over the rounds, and what its changes depended on; nothing where no shared expert grows."""
    growth = Growth.load(record)
    if growth is None:
        return
    name, rules = name or record.title, _options(record)
    yield Section(
        f"How the shared expert grew: {name}",
        "A row is a place in the tree: 2.1 is child 1 of what is child 2 of the root. A full bar is a sub-expert, with "
        "its number; a pale one a mixture of those in the rows below it. Where a change made it, the figure that "
        "caused it stands beside what it was held against.",
        drawn.tree(growth),
        _growth_in_words(growth),
    )
    yield Section(
        f"Why it grew: {name}",
        f"Left, how much the effective rank of a sub-expert is above its moving threshold: every {rules.scale_every} "
        f"rounds those {rules.expands} the line become a mixture (▲), up to {rules.limit} sub-experts and a depth of "
        f"{rules.depth}. Right, its tail energy: a mixture whose mean is above the line becomes one sub-expert again "
        "(▼).",
        drawn.health(growth, rules),
    )


def spectra(record: Record, name: str | None = None) -> Iterator[Section]:
    """Singular values of all sub-experts, with labels (Figure 3); nothing for other methods."""
    found = analyses.load_spectra(record)
    if found is None:
        return
    rules = _options(record)
    yield Section(
        f"Spectra of the sub-experts: {name or record.title}",
        "The singular values of each sub-expert's matrices at the end of the run, from the largest on. A line that "
        "falls fast has a low effective rank: under-fitting, if it is below the sub-expert's threshold. One that is "
        "still high in the grey part has a heavy tail: over-fitting, if the energy there is more than "
        f"{rules.tail_limit:g} of all. The labels are those of the paper's Figure 3, from the means over the matrices.",
        drawn.spectra(found, rules),
        _spectra_in_words(found, rules),
    )


def use(record: Record, name: str | None = None) -> Iterator[Section]:
    """Which clients use which sub-expert; nothing before `analyse use`."""
    found = Use.load(record.folder)
    if found is None:
        return
    dominant = analyses.dominant_classes(record.counts)
    yield Section(
        f"Who uses which sub-expert: {name or record.title}",
        "A row is a client, by its most frequent class (of equally frequent ones the first). On the left, for which "
        "part of its test samples the shared expert is among the experts that its gate chooses; then, for which part "
        "each sub-expert is asked. If sub-experts serve clients with like data, rows between two lines are alike.",
        drawn.use(found, dominant, record.class_names),
        _use_in_words(found, dominant),
    )


# --- in words


def traffic_by_size(records: Sequence[Record]) -> str:
    """What goes through the server in a round while the shared expert has so many sub-experts; nothing if unknown."""
    known = [(record, growth) for record in records if (growth := Growth.load(record)) is not None]
    if not known:
        return ""
    sizes = np.concatenate([growth.leaves() for _, growth in known])
    sent = np.concatenate([server_megabytes(record) for record, _ in known])
    of_each = [f"{short(float(sent[sizes == size].mean()))} MB with {size}" for size in np.unique(sizes).tolist()]
    last = [growth.changes[-1].round for _, growth in known if growth.changes]
    until = f"; the last change was in round {max(last)}" if last else ""
    return f" (in a round {', '.join(of_each)} sub-experts{until})"


def _options(record: Record) -> FedEMoE.Options:
    options: FedEMoE.Options = FedEMoE.Options.check(record.settings.options)
    return options


def _growth_in_words(growth: Growth) -> str:
    if not growth.changes:
        return f"The tree has stayed as it was: {len(growth.first.paths)} sub-experts."
    grown = sum(change.expanded for change in growth.changes)
    sizes = [len(tree.paths) for tree in growth.trees().values()]
    return (
        f"From {sizes[0]} to {sizes[-1]} sub-experts ({max(sizes)} at most): {_times(grown)} one became a mixture, "
        f"{_times(len(growth.changes) - grown)} a mixture became one again; the last change was in round "
        f"{growth.changes[-1].round} of {growth.rounds}."
    )


def _times(number: int) -> str:
    return {0: "never", 1: "once"}.get(number, f"{number} times")


def _spectra_in_words(found: Sequence[Spectrum], rules: Rules) -> str:
    groups = {label: [one.leaf for one in found if one.label == label] for label in (UNDER, NORMAL, OVER)}
    counted = [f"{len(own)} {label} ({', '.join(map(str, own))})" for label, own in groups.items() if own]
    ranks, tails = ([getattr(one.seen, name) for one in found] for name in ("rank", "tail"))
    would = [str(one.leaf) for one in found if rules.expand(one.seen.rank, one.threshold)]
    return (
        f"Of {len(found)} sub-experts: {', '.join(counted)}. Effective rank {min(ranks):.3f} to {max(ranks):.3f}, tail "
        f"energy {min(tails):.4f} to {max(tails):.4f}. The rule ({rules.expands} the threshold) would expand "
        f"{', '.join(would) or 'none'}."
    )


def _use_in_words(found: Use, dominant: np.ndarray) -> str:
    users = (found.used > 0).sum(axis=0)
    most, least, each = users.argmax(), users.argmin(), (found.used > 0).sum(axis=1).mean()
    said = (
        f"The shared expert is asked for {rough(float(found.asked.mean()))} of a client's samples, on average, and "
        f"{each:.1f} of its {len(found.leaves)} sub-experts. Most clients ask sub-expert {found.leaves[most]} "
        f"({users[most]} of {len(dominant)}), fewest {found.leaves[least]} ({users[least]})."
    )
    alike, others = found.shared(dominant)
    if alike is None or others is None:
        return said
    return (
        f"{said} Two clients share {rough(alike)} of what they use if they have the same most frequent class, "
        f"{rough(others)} if not."
    )
