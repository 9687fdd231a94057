"""FedEMoE's shared expert: a tree of mixtures in a fixed number of places, so that it grows without changing shape."""

from functools import reduce

import torch
from torch import Tensor, nn

from fedexperts.models.experts import SparseExperts, best_of


class ElasticExpert(nn.Module):
    """SE: leaves are narrow sub-experts e, inner nodes are mixtures e* of `branches` children with a router each.

    There are places for `limit` leaves and for as many routers as such a tree can have. Leaf j is reached by a path:
    `routes[j]` are the routers on it, from the root, `turns[j]` the child that is taken at each, −1 where the path has
    ended; `exists[j]` says whether the place is taken. A router gives a sample the weights of its best `top` children,
    summing to 1 (of one alone its softmax weight, or the router would never learn); a leaf's weight is the product
    along its path, and the output Σ weight·e(x). `counts` are the samples that used each leaf in training.

    Where only some samples ask it, or some more than others, they say so (`share`): it is a weight above the root's.
    """

    routes: Tensor
    turns: Tensor
    exists: Tensor
    counts: Tensor

    def __init__(
        self, inputs: int, outputs: int, hidden: int, branches: int = 3, top: int = 2, limit: int = 9, depth: int = 2
    ) -> None:
        super().__init__()
        self.top, self.branches, self.depth = top, branches, depth
        self.experts = SparseExperts(
            [
                nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs), nn.ReLU())
                for _ in range(limit)
            ],
            outputs,
        )
        places = 1 + (limit - branches) // max(branches - 1, 1)
        self.routers = nn.ModuleList(nn.Linear(inputs, branches, bias=False) for _ in range(places))
        started = torch.arange(limit) < branches
        nowhere = torch.full((limit, depth), -1)
        self.register_buffer("routes", nowhere.clone())
        self.register_buffer("turns", nowhere.clone())
        self.register_buffer("exists", started)
        self.register_buffer("counts", torch.zeros(limit))
        self.routes[:branches, 0] = 0
        self.turns[:branches, 0] = torch.arange(branches)

    def weights(self, x: Tensor) -> Tensor:
        """Of every leaf for every sample: samples × limit; 0 for a leaf that a sample does not use."""
        scores = torch.stack([router(x) for router in self.routers], dim=1).softmax(2)
        shares = best_of(scores, min(self.top, self.branches), dim=2).flatten(1)  # samples × (routers · branches)
        places = torch.arange(shares.shape[1], device=x.device)
        # A product with zeros and ones, not a lookup: its gradient is added up in the same order every time.
        is_place = (self.routes * self.branches + self.turns)[..., None] == places  # limit × depth × places
        along = torch.where(self.routes >= 0, torch.einsum("sp,ldp->sld", shares, is_place.to(shares)), 1)
        # Not `along.prod(2)`: its gradient asks the host whether there are zeros, which no CUDA graph can capture.
        return reduce(torch.mul, along.unbind(2)) * self.exists

    def forward(self, x: Tensor, share: Tensor | None = None) -> Tensor:
        """`share`: what of each sample's output is wanted (1); of none nothing is computed or counted."""
        x = x.flatten(1)
        weights = self.weights(x)
        if share is not None:
            weights = weights * share[:, None]
        if self.training:
            self.counts.add_((weights > 0).sum(0))
        used, leaves = weights.topk(min(self.top**self.depth, weights.shape[1]), dim=1)
        return self.experts(x, leaves, used)  # type: ignore[no-any-return]
