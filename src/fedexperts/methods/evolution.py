"""How FedEMoE's server decides which sub-expert becomes a mixture and which mixture one again, and what it notes."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedexperts.config import Frozen, Rounds
from fedexperts.methods.base import Round, Table
from fedexperts.methods.growth import Tree, expand, health, shrink, spectra
from fedexperts.methods.message import State

COUNTS, THRESHOLDS, LOG = "uses.counts", "growth.thresholds", "growth.log"
NOTED = ("round", "sub_expert", "rank", "tail", "threshold", "mixture_tail", "change")
"""What the log has of every sub-expert in every round, before the tree changes; `mixture_tail` is the mean over those
that are one mixture with it, 0 if that may not shrink, and `change` is what then becomes of it."""
STAYED, EXPANDED, SHRUNK = 0, 1, -1  # shrunk is the mixture, noted for the one that takes its place
TREE, SPECTRA = "tree.csv", "spectra.csv"
SPECTRUM = ("sub_expert", "threshold", "matrix", "component", "value")


class Rules(Frozen):
    """The settings of the decision."""

    scale_every: Rounds = Field(20, description="rounds between two changes of the tree")
    energy: float = Field(0.99, gt=0, lt=1, description="θ: energy that the effective rank keeps")
    threshold: float = Field(0.8, ge=0, description="v_0: effective rank above which a sub-expert expands")
    smoothing: float = Field(0.07, ge=0, le=1, description="γ of the moving threshold")
    expands: Literal["above", "below"] = Field(
        "above", description="which effective rank expands: above the threshold (the rule) or below it (the prose)"
    )
    tail_share: float = Field(0.9, gt=0, lt=1, description="α: components that the tail begins after")
    tail_limit: float = Field(0.05, ge=0, description="tail energy above which a mixture shrinks")

    def expand(self, rank: float, threshold: float) -> bool:
        return rank > threshold if self.expands == "above" else rank < threshold


class Change(NamedTuple):
    """A change of the tree, and the figures that caused it."""

    round: int
    leaf: int  # the sub-expert that became a mixture, or took the place of one
    expanded: bool
    figure: float  # the effective rank of the one that expanded, the tail energy of the mixture that shrank
    limit: float  # what it was held against
    tree: Tree  # as it is then


def beginning(leaves: int, threshold: float) -> State:
    """What the server knows before the first round."""
    return {
        THRESHOLDS: torch.full((leaves,), threshold, dtype=torch.float64),
        LOG: torch.zeros(0, len(NOTED), dtype=torch.float64),
    }


def evolve(state: State, rules: Rules, now: Round) -> State:
    """Move the thresholds (Eq. 8), when it is time change the tree, and note all of it."""
    tree = Tree.of(state)
    found = health(state, tree.paths, rules.energy, rules.tail_share)
    thresholds = state[THRESHOLDS].clone()
    if now.number > 1:
        for leaf, (rank, _) in found.items():
            thresholds[leaf] = rules.smoothing * rank + (1 - rules.smoothing) * thresholds[leaf]
    limits: list[float] = thresholds.tolist()
    families = {router: family for router in tree.used_routers if (family := tree.family(router))}
    tails = {router: sum(found[leaf].tail for leaf in family) / len(family) for router, family in families.items()}
    became, over = dict.fromkeys(found, STAYED), list[int]()
    if now.number % rules.scale_every == 0:  # all is decided before anything is done
        heavy = [router for router, tail in tails.items() if tail > rules.tail_limit]
        staying = found.keys() - {leaf for router in heavy for leaf in families[router]}
        far = {leaf: abs(seen.rank - limits[leaf]) for leaf, seen in found.items()}
        over = [leaf for leaf, seen in found.items() if leaf in staying and rules.expand(seen.rank, limits[leaf])]
        over.sort(key=lambda leaf: -far[leaf])  # if there is no room for all, those that are furthest beyond
        for router in heavy:
            state = shrink(state, router, state[COUNTS])
            [kept] = Tree.of(state).paths.keys() & set(families[router])
            became[kept] = SHRUNK
        for leaf in over:
            before = Tree.of(state)
            if before.can_expand(leaf):
                state = expand(state, leaf, now)
                thresholds[sorted(Tree.of(state).paths.keys() - before.paths.keys())] = rules.threshold
                became[leaf] = EXPANDED
    of_leaf = {leaf: tails[router] for router, family in families.items() for leaf in family}
    order = [*(leaf for leaf in found if leaf not in over), *over]  # as they changed: so the trees can be made again
    rows = [[now.number, leaf, *found[leaf], limits[leaf], of_leaf.get(leaf, 0), became[leaf]] for leaf in order]
    return state | {THRESHOLDS: thresholds, LOG: torch.cat([state[LOG], state[LOG].new_tensor(rows)])}


def changes(log: Sequence[Sequence[float]], tree: Tree, rules: Rules) -> list[Change]:
    """Every change that the log has, in the order in which they were made, from the first tree on."""
    tree, found = tree.first(), []
    # In a round mixtures shrink first.
    for row in sorted((row for row in log if row[-1] != STAYED), key=lambda row: (row[0], row[-1])):
        number, leaf, rank, _, threshold, mixture_tail, change = row
        place = int(leaf)
        tree = tree.expanded(place) if change == EXPANDED else tree.shrunk(tree.paths[place][-1][0])
        why = (rank, threshold) if change == EXPANDED else (mixture_tail, rules.tail_limit)
        found.append(Change(int(number), place, change == EXPANDED, *why, tree))
    return found


def tables(server: Mapping[str, Tensor]) -> dict[str, Table]:
    """The log, if there is one, and the singular values of all sub-experts as they are at the end."""
    thresholds = server[THRESHOLDS].tolist()
    values = [
        (leaf, thresholds[leaf], matrix, component, value)
        for leaf, found in spectra(server, Tree.of(server).paths).items()
        for matrix, spectrum in enumerate(found)
        for component, value in enumerate(spectrum.tolist())
    ]
    log = server[LOG].tolist()
    return ({TREE: Table(NOTED, log)} if log else {}) | {SPECTRA: Table(SPECTRUM, values)}
