"""How FedEMoE's shared expert grew and shrank: what the server saw of each sub-expert, and what became of it."""

from dataclasses import dataclass, replace

import numpy as np

from fedexperts.analyses.tables import read_table
from fedexperts.measure import Record
from fedexperts.methods import Method, registry
from fedexperts.methods.evolution import NOTED, TREE, Change, changes
from fedexperts.methods.fedemoe import FedEMoE
from fedexperts.methods.growth import Tree

Position = tuple[int, ...]
"""Where something is in the tree: which child of the root, which of that one's, …"""


@dataclass(frozen=True)
class Life:
    """How long there was a sub-expert, or a mixture of some, in a place of the tree."""

    position: Position
    leaf: int | None  # the sub-expert's number; None: a mixture
    begin: int  # the round after which it was there; 0: from the beginning
    end: int
    why: Change | None = None  # what made it: not for those that came with a mixture


@dataclass(frozen=True)
class Growth:
    """The server's log of a run, and what follows from it."""

    log: np.ndarray  # a row for each sub-expert in each round, with the columns `NOTED`
    changes: list[Change]
    first: Tree

    @property
    def rounds(self) -> int:
        return int(self.log[:, 0].max())

    def trees(self) -> dict[int, Tree]:
        """The tree after each round that changed it, and 0, the beginning."""
        return {0: self.first} | {change.round: change.tree for change in self.changes}

    def leaves(self) -> np.ndarray:
        """How many sub-experts there were in each round, from the first on, before the tree changed."""
        return np.bincount(self.log[:, 0].astype(int))[1:]

    def lives(self) -> list[Life]:
        """Of all sub-experts and mixtures below the root, in the order of the tree."""
        there: dict[Position, Life] = {}
        over: list[Life] = []
        for now, tree in self.trees().items():
            reasons = {_place(change): change for change in self.changes if change.round == now}
            inhabitants = _inhabitants(tree)
            for position, life in list(there.items()):
                if position not in inhabitants or inhabitants[position] != life.leaf:
                    over.append(replace(there.pop(position), end=now))
            for position, leaf in inhabitants.items():
                there.setdefault(position, Life(position, leaf, now, self.rounds + 1, reasons.get(position)))
        return sorted([*over, *there.values()], key=lambda life: (life.position, life.begin))

    @classmethod
    def load(cls, record: Record) -> "Growth | None":
        """What a run has left in its folder; None if its shared expert never grows, or it has none."""
        found = read_table(record.folder, TREE, None, NOTED)
        if found is None:
            return None
        rules, log = FedEMoE.Options.check(record.settings.options), found[1]
        first = Tree({}, rules.branches, rules.limit, rules.limit, rules.depth).first()
        return cls(log, changes(log.tolist(), first, rules), first)


def shares_an_expert(record: Record) -> bool:
    """Whether there is such a shared expert in the run at all."""
    return issubclass(registry().get(record.settings.method, Method), FedEMoE)  # a method may be gone, its runs not


def _inhabitants(tree: Tree) -> dict[Position, int | None]:
    """Sub-experts by their places in the tree, and None for a mixture."""
    found: dict[Position, int | None] = {}
    for leaf, path in tree.paths.items():
        turns = tuple(turn for _, turn in path)
        found |= {turns[:depth]: None for depth in range(1, len(turns))} | {turns: leaf}
    return found


def _place(change: Change) -> Position:
    """Of the mixture that came to be, or of the sub-expert that took one's place."""
    turns = tuple(turn for _, turn in change.tree.paths[change.leaf])
    return turns[:-1] if change.expanded else turns
