"""FedMoE-DA's aggregation matrix A: who is whose neighbour, and how much each counts."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.methods.base import Trained, Want
from fedexperts.methods.message import State


class Neighbours(nn.Module):
    """The client's rows of A: S_i of each of its experts as (client, expert), and a_ij; weight 0 is nobody."""

    def __init__(self, experts: int, asked: int) -> None:
        super().__init__()
        self.register_buffer("places", torch.zeros(experts, asked + 1, 2, dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(experts, asked + 1))


def matrix(proxies: Mapping[int, Tensor], asked: int, temperature: float) -> State:
    """Each client's rows of A (Eq. 8-10), `places.CLIENT` and `weights.CLIENT`, from all clients' proxies."""
    counts = {client: len(own) for client, own in proxies.items()}
    of_all = torch.cat(list(proxies.values()))
    every = torch.tensor([(client, expert) for client, count in counts.items() for expert in range(count)])
    every = every.to(of_all.device)
    directions = F.normalize(of_all, dim=1)
    similarity = (directions @ directions.T).fill_diagonal_(torch.inf)  # an expert is its own nearest, always
    nearest = min(asked + 1, len(of_all))
    chosen = similarity.topk(nearest, dim=1).indices
    weights = (similarity.fill_diagonal_(1).gather(1, chosen) / temperature).softmax(1)
    missing = asked + 1 - nearest
    places, weights = F.pad(every[chosen], (0, 0, 0, missing)), F.pad(weights, (0, missing))
    sizes, rows = list(counts.values()), dict[str, Tensor]()
    for client, near, share in zip(counts, torch.split(places, sizes), torch.split(weights, sizes), strict=True):
        rows |= {f"places.{client}": near.clone(), f"weights.{client}": share.clone()}  # a view would keep everybody's
    return rows


def rows(after: Trained) -> list[dict[Want, float]]:
    """For each of the client's experts: whose experts it is mixed of, and a_ij; empty before the first matrix."""
    places, weights = after.own["neighbours.places"].tolist(), after.own["neighbours.weights"].tolist()
    found = [
        {Want(peer, f"experts.{expert}"): weight for (peer, expert), weight in zip(row, own, strict=True) if weight > 0}
        for row, own in zip(places, weights, strict=True)
    ]
    return found if any(found) else []


def shares(found: list[dict[Want, float]], at_hand: Mapping[Want, object]) -> Tensor:
    """a_ij as experts × what is at hand; what could not be fetched leaves its weight to the others."""
    weights = torch.tensor([[row.get(want, 0.0) for want in at_hand] for row in found], dtype=torch.float64)
    return weights / weights.sum(1, keepdim=True)
