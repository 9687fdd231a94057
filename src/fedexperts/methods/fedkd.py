"""FedKD: a private mentor and a small shared mentee teach each other; the mentee's update travels compressed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.methods.base import Batch, Model, Reply, Round, Trained, weighted_mean
from fedexperts.methods.message import Message, Owner, State
from fedexperts.methods.mutual import Mutual, divergence
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

FIRST_RANKS, SPARE, POWERS = 32, 8, 3
"""Of the randomised decomposition: vectors to begin with, how many more than needed, power iterations."""
SHIFT = 1e-13
"""Of the sum of all squares: far above what rounding in float64 makes of nothing, far below what matters."""


class FedKD(Mutual):
    """L = L_task + (KL(p_other ‖ p_own) + MSE(H_mentor, W_h·H_mentee)) / (L_task_mentor + L_task_mentee), for each.

    So both listen to each other only as far as both are right. Each loss moves its own model only, W_h goes with the
    mentee; the authors' code lets the gradients cross. H are the features, task losses are a batch's means (the code).

    Up travels the mentee's update, each matrix as U_r·(Σ_r·V_r) with the smallest r that keeps T of Σσ²; T rises with
    the rounds. The paper compresses the mean update on its way down too, which presumes that every client was there
    in the round before; clients are sampled here, so the mentee's weights go down whole.
    """

    name = "fedkd"
    title = "FedKD"
    source = "Wu et al. 2022: Communication-efficient federated learning via knowledge distillation, Nat. Commun."
    owners = {"mentee": Owner.SHARED, "mentor": Owner.PRIVATE, "projection": Owner.PRIVATE}
    used = "mentor"

    class Options(Mutual.Options):
        energy_start: float = Field(0.95, gt=0, le=1, description="energy T that an update keeps in the first round")
        energy_end: float = Field(0.98, gt=0, le=1, description="energy T that an update keeps in the last round")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        mentor, mentee = self.pair(client)
        projection = nn.Linear(mentee.features, mentor.features, bias=False)
        return {"mentee": mentee, "mentor": mentor, "projection": projection}

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        of_mentor, of_mentee = model.mentor.extractor(batch.x), model.mentee.extractor(batch.x)
        mentor, mentee = model.mentor.head(of_mentor), model.mentee.head(of_mentee)
        translated = model.projection(of_mentee)

        def lesson(own: Tensor, other: Tensor, hidden: Tensor) -> Tensor:
            task, others_task = F.cross_entropy(own, batch.y), F.cross_entropy(other.detach(), batch.y)
            return task + (divergence(teacher=other, learner=own) + hidden) / (task + others_task)

        return lesson(mentor, mentee, F.mse_loss(of_mentor, translated.detach())) + lesson(
            mentee, mentor, F.mse_loss(translated, of_mentor.detach())
        )

    def energy(self, now: Round) -> float:
        """T(t) = T_start + (T_end − T_start)·t, t the part of the rounds that is done with this one."""
        start, end = self.options.energy_start, self.options.energy_end
        return start + (end - start) * now.number / now.total

    def replies(self, together: Sequence[Trained], now: Round) -> Sequence[Message]:
        models = super().replies(together, now)
        received = {name: torch.stack([after.received[name] for after in together]) for name in models[0].tensors}
        updates = {name: torch.stack([m.tensors[name] for m in models]) - was for name, was in received.items()}
        sent = compress(updates, self.energy(now))
        return [Message(tensors, model.numbers) for tensors, model in zip(sent, models, strict=True)]

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        whole = [Reply(r.client, Message(rebuild(r.message.tensors, server), r.message.numbers)) for r in replies]
        mean = weighted_mean(whole)
        return {name: tensor + mean[name] for name, tensor in server.items()}


def compress(updates: State, energy: float) -> list[State]:
    """Of clients' updates (clients × the tensor's shape) each matrix as two factors that keep `energy` of its Σσ²,
    if they are smaller than the matrix.
    """
    messages: list[State] = [{} for _ in next(iter(updates.values()))]
    for name, stacked in updates.items():
        found: list[Factors | None] = [None] * len(stacked)
        if stacked.dim() > 2:
            # A CPU gains nothing by a batch, and its last bits would depend on who else is in it.
            batch = len(stacked) if stacked.is_cuda else 1
            found = [pair for some in torch.split(stacked.flatten(2), batch) for pair in factors(some, energy)]
        for message, whole, pair in zip(messages, stacked, found, strict=True):
            message |= {name: whole} if pair is None else {f"{name}/left": pair.left, f"{name}/right": pair.right}
    return messages


class Factors(NamedTuple):
    """A matrix of low rank, as left @ right."""

    left: Tensor
    right: Tensor


def factors(matrices: Tensor, energy: float) -> list[Factors | None]:
    """For each of several matrices, factors of the lowest rank that keeps `energy` of Σσ²; none if they would not be
    smaller than the matrix.

    A randomised decomposition (Halko et al. 2011): the leading singular vectors are found in the span of a few products
    with random vectors, of twice as many until they hold enough. An update has few that matter, and products are quick
    where a whole decomposition is not. What is kept is measured, not estimated; the rank may be one or two too high.
    """
    most = (matrices[0].numel() - 1) // sum(matrices.shape[1:])
    found: list[Factors | None] = [None] * len(matrices)
    waiting, exact, size = list(range(len(matrices))), matrices.to(torch.float64, copy=True), min(FIRST_RANKS, most)
    while waiting and size:
        try:
            squares, left, right = leading(exact, size)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            break  # they go as they are
        enough = squares.cumsum(1) >= energy * exact.square().sum((1, 2))[:, None]
        ranks = ((~enough).sum(1) + 1).tolist()  # NaN is never enough
        left, right = left.to(matrices.dtype), right.to(matrices.dtype)
        last, again = size == most, []
        for place, rank in enumerate(ranks):
            if rank <= (size if last else size - SPARE):
                found[waiting[place]] = Factors(left[place, :, :rank], right[place, :rank])
            else:
                again.append(place)
        waiting, exact, size = [waiting[place] for place in again], exact[again], 0 if last else min(2 * size, most)
    return found


def leading(matrices: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The leading σ² of each matrix, falling, and U and Σ·V to them, as far as they are found with `size` vectors."""
    sketch = torch.randn(matrices.shape[2], size, dtype=matrices.dtype, generator=torch.Generator().manual_seed(0))
    basis = matrices @ sketch.to(matrices.device)
    for _ in range(POWERS):
        basis = matrices @ (matrices.mT @ orthonormal(basis))
    basis = orthonormal(orthonormal(basis))
    within = basis.mT @ matrices
    products = (within @ within.mT).nan_to_num(0, 0, 0)  # what is no number cannot be decomposed
    squares, vectors = torch.linalg.eigh(products)
    first = vectors.flip(2)
    return squares.flip(1), basis @ first, first.mT @ within


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis of their span, by Cholesky: one launch for all matrices, where QR is one after the other.

    A little is added to the diagonal, so that it is positive: columns that hardly add to the span become short ones.
    """
    products = columns.mT @ columns
    diagonal = products.diagonal(dim1=1, dim2=2)
    diagonal += SHIFT * diagonal.sum(1, keepdim=True) + torch.finfo(columns.dtype).tiny
    triangle, failed = torch.linalg.cholesky_ex(products)
    triangle = torch.where(failed[:, None, None] == 0, triangle, torch.nan)  # what is no basis must not pass for one
    return cast(Tensor, torch.linalg.solve_triangular(triangle.mT, columns, upper=True, left=False))


def rebuild(message: Mapping[str, Tensor], like: State) -> State:
    """What `compress` was given, as far as the energy goes."""
    return {
        name: message[name]
        if name in message
        else (message[f"{name}/left"] @ message[f"{name}/right"]).reshape(tensor.shape)
        for name, tensor in like.items()
    }
