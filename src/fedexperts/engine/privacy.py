"""Differential privacy of what a client replies: its change is clipped, and Gaussian noise is added.

The noise is added by the client itself, so it holds against the server too. It covers the tensors that come back
changed, and nothing else: whatever else a method replies with is refused, not sent as it is.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedexperts.config import PrivacySettings
from fedexperts.errors import PrivacyError
from fedexperts.methods import Message, Method, Owner, State, part_of, select

SAMPLES = "samples"
"""The one number that goes along as it is: the server knows it from the start."""


def check_covered(method: Method) -> None:
    """Refuse methods in which something leaves a client by another way than its replies."""
    if method.exchanges:
        peers = ", ".join(sorted(method.owned(Owner.PEER))) or "parts"
        raise PrivacyError(f"{_without(method)}: clients fetch {peers} from each other, which no noise covers")
    if method.begins() is not None:
        raise PrivacyError(f"{_without(method)}: it begins with another run, whose messages its ε does not cover")


def protected(
    method: Method, reply: Message, sent: Message, privacy: PrivacySettings, rng: np.random.Generator
) -> Message:
    """What was sent + Δ·min(1, C/‖Δ‖) + N(0, (σC)²); Δ is the change of all tensors together, as one long vector."""
    assert privacy.clip is not None
    before = {**sent.tensors, **sent.known}
    _check_bounded(method, reply, before)
    before |= {name: torch.zeros_like(before[name]) for name in select(reply.tensors, method.differences)}
    after = clipped(reply.tensors, before, privacy.clip)
    if privacy.noise:
        for name in sorted(after):  # in any message in the same order
            drawn = torch.from_numpy(rng.standard_normal(tuple(after[name].shape)))
            after[name] = after[name] + privacy.noise * privacy.clip * drawn.to(after[name])
    return Message(after, reply.numbers, reply.known)


def clipped(after: Mapping[str, Tensor], before: Mapping[str, Tensor], limit: float) -> State:
    """The tensors with their change cut to the limit; within it they are as they were, to the bit."""
    start = {name: before[name].to(tensor) for name, tensor in after.items()}
    changes = {name: tensor - start[name] for name, tensor in after.items()}
    norm = torch.stack([change.double().norm() for change in changes.values()]).norm()
    share = limit / norm
    return {
        name: torch.where(norm <= limit, after[name], start[name] + share.to(change) * change)
        for name, change in changes.items()
    }


def _check_bounded(method: Method, reply: Message, before: Mapping[str, Tensor]) -> None:
    for name, tensor in reply.tensors.items():
        part = part_of(name)
        if name not in before or before[name].shape != tensor.shape:
            raise PrivacyError(
                f"{_without(method)}: the part {part} of a reply ({name}) is not the change of anything that the "
                "client was sent, so no clipping bounds it"
            )
        if not tensor.is_floating_point():
            raise PrivacyError(
                f"{_without(method)}: the part {part} of a reply has whole numbers ({name}), to which no noise can be "
                "added; BatchNorm counts so: take a model without it"
            )
    if others := sorted(reply.numbers.keys() - {SAMPLES}):
        raise PrivacyError(f"{_without(method)}: no noise covers the number {', '.join(others)} of a reply")
    if reply.known:
        raise PrivacyError(f"{_without(method)}: a reply names what was sent before ({', '.join(sorted(reply.known))})")


def _without(method: Method) -> str:
    return f"'{method.name}' cannot run with --clip"
