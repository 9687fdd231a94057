"""What methods share that exchange one row per class (mean logits, prototypes) in place of weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedexperts.methods.base import ByClass, Reply
from fedexperts.methods.message import Message


def rows_of_own_classes(by_class: ByClass, name: str) -> Message:
    """A client's means, of the classes that it has and of no others."""
    own = by_class.counts.nonzero().squeeze(1)
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
