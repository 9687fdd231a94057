"""How FedEMoE's server decides which sub-expert becomes a mixture and which mixture one again, and what it notes."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedexperts.config import Frozen
from fedexperts.methods.base import Round
from fedexperts.methods.growth import Health, Tree, expand, health, shrink
from fedexperts.methods.message import State

COUNTS, THRESHOLDS = "uses.counts", "growth.thresholds"
HEALTH, LOG = "growth.health", "growth.log"
"""What was seen of every sub-expert in every round, and every change of the tree with the figures that caused it."""


class Rules(Frozen):
    """The settings of the decision."""

    scale_every: int = Field(20, ge=1, description="rounds between two changes of the tree")
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
    expanded: bool  # a sub-expert became a mixture; else a mixture became one sub-expert again
    leaf: int  # which one; it has its number before and after
    seen: Health  # of the sub-expert; of a mixture the tail energy is the mean over its own
    limit: float  # what the rank, or the tail energy, was held against
    tree: Tree  # as it is then


def beginning(leaves: int, threshold: float) -> State:
    """What the server knows before the first round."""
    return {
        THRESHOLDS: torch.full((leaves,), threshold, dtype=torch.float64),
        HEALTH: torch.zeros(0, 5, dtype=torch.float64),
        LOG: torch.zeros(0, 6, dtype=torch.float64),
    }


def evolve(state: State, rules: Rules, now: Round) -> State:
    """Move the thresholds (Eq. 8), and when it is time change the tree; all is decided before anything is done."""
    tree = Tree.of(state)
    found = {leaf: health(state, leaf, rules.energy, rules.tail_share) for leaf in tree.paths}
    thresholds = state[THRESHOLDS].clone()
    if now.number > 1:
        for leaf, (rank, _) in found.items():
            thresholds[leaf] = rules.smoothing * rank + (1 - rules.smoothing) * thresholds[leaf]
    limits: list[float] = thresholds.tolist()
    rows = [[now.number, leaf, *seen, limits[leaf]] for leaf, seen in found.items()]
    state = state | {THRESHOLDS: thresholds, HEALTH: _longer(state[HEALTH], rows)}
    if now.number % rules.scale_every:
        return state
    over = [leaf for leaf, seen in found.items() if rules.expand(seen.rank, limits[leaf])]
    families = {router: family for router in tree.used_routers if (family := tree.family(router))}
    for router, family in families.items():
        tail = sum(found[leaf].tail for leaf in family) / len(family)
        if tail > rules.tail_limit:
            state = shrink(state, router, state[COUNTS])
            [kept] = Tree.of(state).paths.keys() & set(family)
            over = [leaf for leaf in over if leaf not in family]
            state = _noted(state, now, False, kept, Health(found[kept].rank, tail), rules.tail_limit)
    for leaf in over:
        before = Tree.of(state)
        if before.can_expand(leaf):
            state = expand(state, leaf, now)
            thresholds = state[THRESHOLDS].clone()
            thresholds[sorted(Tree.of(state).paths.keys() - before.paths.keys())] = rules.threshold
            state = _noted(state | {THRESHOLDS: thresholds}, now, True, leaf, found[leaf], limits[leaf])
    return state


def changes(server: Mapping[str, Tensor]) -> list[Change]:
    """Every change so far, with the tree as it was after it."""
    tree, found = Tree.of(server).first(), []
    for number, expanded, leaf, rank, tail, limit in server[LOG].tolist():
        place = int(leaf)
        tree = tree.expanded(place) if expanded else tree.shrunk(tree.paths[place][-1][0])
        found.append(Change(int(number), bool(expanded), place, Health(rank, tail), limit, tree))
    return found


def _noted(state: State, now: Round, expanded: bool, leaf: int, why: Health, limit: float) -> State:
    return state | {LOG: _longer(state[LOG], [[now.number, expanded, leaf, *why, limit]])}


def _longer(table: Tensor, rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.cat([table, table.new_tensor(rows)])
