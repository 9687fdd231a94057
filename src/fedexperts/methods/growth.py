"""How FedEMoE's shared expert is looked at and changed: spectra of the weights, and the tree."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedexperts.methods.base import Round
from fedexperts.methods.message import State, under

PART = "shared_expert"
Path = tuple[tuple[int, int], ...]
"""From the root to a leaf: (router, which of its children)."""


def effective_rank(spectrum: Tensor, energy: float) -> float:
    """p_θ: the smallest part of the rank that keeps a share θ of the squared singular values (Eq. 6)."""
    squares = spectrum.square()
    reached = int((squares.cumsum(0) < energy * squares.sum()).sum()) + 1
    return min(reached, len(squares)) / len(squares)


def tail_energy(spectrum: Tensor, share: float) -> float:
    """T_α: what the squared singular values below the largest α of them are of all (Eq. 7)."""
    squares = spectrum.square()
    whole = float(squares.sum())
    return float(squares[math.ceil(share * len(squares)) :].sum()) / whole if whole else 0.0


class Health(NamedTuple):
    """What the spectra of a sub-expert's matrices say of it, on average."""

    rank: float
    tail: float


def spectra(state: Mapping[str, Tensor], leaves: Iterable[int]) -> dict[int, list[Tensor]]:
    """The singular values of each of the sub-experts' matrices, the largest first.

    They are the roots of the eigenvalues of W·Wᵀ, which for a wide W is small: what matters is their squares' share of
    the sum, and a GPU needs far longer for an SVD. All sub-experts have the same matrices.
    """
    each = {leaf: [tensor.double() for tensor in expert(state, leaf).values() if tensor.ndim == 2] for leaf in leaves}
    alike = [torch.stack(matrices) for matrices in zip(*each.values(), strict=True)]
    wide = [stack if stack.shape[1] <= stack.shape[2] else stack.mT for stack in alike]
    squares = [torch.linalg.eigvalsh((stack @ stack.mT).cpu()).clamp(min=0).flip(1) for stack in wide]
    return {leaf: [values[place].sqrt() for values in squares] for place, leaf in enumerate(each)}


def health_of(found: Sequence[Tensor], energy: float, share: float) -> Health:
    ranks = [effective_rank(spectrum, energy) for spectrum in found]
    tails = [tail_energy(spectrum, share) for spectrum in found]
    return Health(sum(ranks) / len(ranks), sum(tails) / len(tails))


def health(state: Mapping[str, Tensor], leaves: Iterable[int], energy: float, share: float) -> dict[int, Health]:
    return {leaf: health_of(found, energy, share) for leaf, found in spectra(state, leaves).items()}


def expert(state: Mapping[str, Tensor], leaf: int) -> State:
    """The tensors of a sub-expert."""
    return under(state, f"{PART}.experts.{leaf}")


class Tree(NamedTuple):
    """The structure as paths; the tensors `routes`, `turns` and `exists` are the same for a model."""

    paths: dict[int, Path]  # leaf → how it is reached
    branches: int
    leaves: int  # places
    routers: int  # places
    depth: int

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> "Tree":
        routes, turns = state[f"{PART}.routes"].tolist(), state[f"{PART}.turns"].tolist()
        taken = state[f"{PART}.exists"].tolist()
        paths = {
            leaf: tuple((r, t) for r, t in zip(routes[leaf], turns[leaf], strict=True) if r >= 0)
            for leaf, there in enumerate(taken)
            if there
        }
        routers = [tensor for name, tensor in state.items() if name.startswith(f"{PART}.routers.")]
        return cls(paths, len(routers[0]), len(taken), len(routers), len(routes[0]))

    def tensors(self, like: Tensor) -> State:
        """The structure as a model has it."""
        steps = [[*self.paths.get(leaf, ()), *[(-1, -1)] * self.depth][: self.depth] for leaf in range(self.leaves)]
        both = torch.tensor(steps, device=like.device)
        exists = torch.tensor([leaf in self.paths for leaf in range(self.leaves)], device=like.device)
        return {f"{PART}.routes": both[..., 0], f"{PART}.turns": both[..., 1], f"{PART}.exists": exists}

    @property
    def used_routers(self) -> list[int]:
        return sorted({router for path in self.paths.values() for router, _ in path})

    def free_leaves(self) -> list[int]:
        return [leaf for leaf in range(self.leaves) if leaf not in self.paths]

    def free_routers(self) -> list[int]:
        return [router for router in range(self.routers) if router not in self.used_routers]

    def can_expand(self, leaf: int) -> bool:
        room = len(self.free_leaves()) >= self.branches - 1 and bool(self.free_routers())
        return leaf in self.paths and len(self.paths[leaf]) < self.depth and room

    def first(self) -> "Tree":
        """As it began: one mixture."""
        return self._replace(paths={leaf: ((0, leaf),) for leaf in range(self.branches)})

    def expanded(self, leaf: int) -> "Tree":
        """The leaf keeps its index among new ones, under a new router; both are the first that are free."""
        path, router, others = self.paths[leaf], self.free_routers()[0], iter(self.free_leaves())
        turn = path[-1][1]
        family = {child: leaf if child == turn else next(others) for child in range(self.branches)}
        return self._replace(
            paths={**self.paths, **{place: (*path, (router, child)) for child, place in family.items()}}
        )

    def shrunk(self, router: int) -> "Tree":
        """Of a mixture of leaves the one stays that has the index which the mixture itself has above."""
        family = self.family(router)
        path = self.paths[family[0]][:-1]
        others = {leaf: way for leaf, way in self.paths.items() if leaf not in family}
        return self._replace(paths=others | {family[path[-1][1]]: path})

    def family(self, router: int) -> list[int]:
        """The children of a mixture, in order, if all of them are leaves and it is not the root; else nothing."""
        children = {path[-1][1]: leaf for leaf, path in self.paths.items() if path[-1][0] == router}
        nested = any(path[-1][0] == router and len(path) > 1 for path in self.paths.values())
        return [children[turn] for turn in range(self.branches)] if len(children) == self.branches and nested else []


def expand(state: State, leaf: int, now: Round) -> State:
    """E → e* (Algorithm 3): the leaf keeps its index, among fresh siblings, under a copy of its parent's router."""
    tree = Tree.of(state)
    grown = tree.expanded(leaf)
    (parent, _), (router, _) = grown.paths[leaf][-2:]
    places = sorted(grown.paths.keys() - tree.paths.keys())
    fresh = {name: tensor for place in places for name, tensor in _fresh(state, place, now).items()}
    copied = {f"{PART}.routers.{router}.weight": state[f"{PART}.routers.{parent}.weight"].clone()}
    return {**state, **fresh, **copied, **grown.tensors(state[f"{PART}.routes"])}


def shrink(state: State, router: int, counts: Tensor) -> State:
    """e* → e (Algorithm 4): Σ b_r e_r by normalised counts, at the index that e had before it grew."""
    tree = Tree.of(state)
    small, family = tree.shrunk(router), tree.family(router)
    [kept] = small.paths.keys() & set(family)
    uses = counts[family].double()
    shares = uses / uses.sum() if uses.sum() > 0 else torch.full_like(uses, 1 / len(family))
    each = [expert(state, leaf) for leaf in family]
    merged = {}
    for name, tensor in expert(state, kept).items():
        inner = name.removeprefix(f"{PART}.experts.{kept}.")
        stacked = torch.stack([e[f"{PART}.experts.{leaf}.{inner}"] for e, leaf in zip(each, family, strict=True)])
        merged[name] = torch.tensordot(shares.to(tensor), stacked, dims=1)
    return {**state, **merged, **small.tensors(state[f"{PART}.routes"])}


def _fresh(state: Mapping[str, Tensor], leaf: int, now: Round) -> State:
    """A sub-expert as its linear layers begin, from the round's own randomness."""
    drawn, tensors = {}, expert(state, leaf)
    for number, name in enumerate(sorted(tensors)):  # a saved state may have them in another order
        inputs = tensors[f"{name.rpartition('.')[0]}.weight"].shape[1]
        values = now.stream("growth", leaf, number).uniform(-1, 1, tuple(tensors[name].shape)) * inputs**-0.5
        drawn[name] = torch.from_numpy(values).to(tensors[name])
    return drawn
