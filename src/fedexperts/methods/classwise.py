"""What methods share that exchange one row per class: mean logits, prototypes."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedexperts.errors import MethodError
from fedexperts.methods.base import ByClass, Model, Reply
from fedexperts.methods.message import Message, State


def rows_of_own_classes(by_class: ByClass, name: str) -> Message:
    """A client's means, of the classes that it has and of no others."""
    own = by_class.own
    return Message(
        {f"{name}.classes": own, f"{name}.counts": by_class.counts[own], f"{name}.means": by_class.means[own]}
    )


def sums(replies: Sequence[Reply], name: str, means: Tensor, by_samples: bool) -> tuple[Tensor, Tensor]:
    """Over the replies: Σ w_k·mean_k and Σ w_k of each class; w_k is a client's count of samples, or 1."""
    total, weight = torch.zeros_like(means), means.new_zeros(len(means))
    for reply in replies:
        sent = {key: reply.message.tensors[f"{name}.{key}"] for key in ("classes", "counts", "means")}
        own = sent["counts"] if by_samples else torch.ones_like(sent["counts"])
        total.index_add_(0, sent["classes"], own[:, None] * sent["means"])
        weight.index_add_(0, sent["classes"], own)
    return total, weight


PROTOTYPES = "prototypes"
_MEANS, _KNOWN = f"{PROTOTYPES}.means", f"{PROTOTYPES}.known"


def no_prototypes(model: Model) -> State:
    """The classes' mean features before anybody has sent any."""
    weight = model.head.weight
    return {_MEANS: torch.zeros_like(weight), _KNOWN: weight.new_zeros(len(weight))}


def next_prototypes(server: State, replies: Sequence[Reply]) -> State:
    """The clients' prototypes, weighted by samples; a class that nobody sends keeps the one it has."""
    total, samples = sums(replies, PROTOTYPES, server[_MEANS], by_samples=True)
    new = samples > 0
    means = torch.where(new[:, None], total / samples.clamp(min=1)[:, None], server[_MEANS])
    return {_MEANS: means, _KNOWN: server[_KNOWN].maximum(new.to(means))}


def distance_to_prototypes(features: Tensor, y: Tensor, received: State) -> Tensor:
    """The squared distance to the class's prototype, a mean over features and samples; none where it is not known."""
    distances = (features - received[_MEANS][y]).square().mean(1) * received[_KNOWN][y]
    return distances.mean()


def check_width(method: str, features: Tensor, rows: Tensor) -> None:
    """An error where a client's features cannot be compared with the rows of all clients."""
    if features.shape[1] != rows.shape[1]:
        raise MethodError(
            f"{method} compares features, but one client's have the width {features.shape[1]} and another's "
            f"{rows.shape[1]}; use models that end alike, such as cnn1 … cnn5"
        )


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """‖row − other‖ of each with each. By products: a table of all differences would be as wide as the features."""
    squares = rows.square().sum(1)[:, None] + others.square().sum(1) - 2 * rows @ others.T
    return squares.clamp(min=1e-12).sqrt()  # the root of nothing has no gradient


def between_classes(rows: Tensor, there: Tensor) -> Tensor:
    """The distances between the classes that are there; infinite to all others, and to itself."""
    alone = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    return torch.where(there[:, None] & there & ~alone, distances(rows, rows), math.inf)


def margin_contrast(features: Tensor, y: Tensor, rows: Tensor, margin: Tensor) -> Tensor:
    """−log of e^{−d_y − m} / (e^{−d_y − m} + Σ_{c ≠ y} e^{−d_c}), d_c the distance to the row of class c, m the margin:

    the row of one's own class must be nearer than all others by more than the margin. The mean over samples.
    """
    own = y[:, None] == torch.arange(len(rows), device=rows.device)
    return F.cross_entropy(-(distances(features, rows) + margin * own), y)
