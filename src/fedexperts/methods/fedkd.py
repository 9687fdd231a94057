"""FedKD: a private mentor and a small shared mentee teach each other; the mentee's update travels compressed."""

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.methods.base import Batch, Model, Reply, Round, Trained, weighted_mean
from fedexperts.methods.message import Message, Owner, State, select
from fedexperts.methods.mutual import Mutual, divergence
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

FIRST_RANKS, SPARE, POWERS = 32, 8, 3
"""Of the randomised decomposition: vectors to begin with, how many more than needed, power iterations."""


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

    def reply(self, after: Trained, now: Round) -> Message:
        own = select(after.own, self.owned(Owner.SHARED))
        update = {name: tensor - after.received[name] for name, tensor in own.items()}
        return Message(compress(update, self.energy(now)), {"samples": after.client.samples})

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        whole = [Reply(r.client, Message(rebuild(r.message.tensors, server), r.message.numbers)) for r in replies]
        mean = weighted_mean(whole)
        return {name: tensor + mean[name] for name, tensor in server.items()}


def compress(update: State, energy: float) -> State:
    """Each matrix as two factors that keep `energy` of its Σσ², if they are smaller than the matrix."""
    message = dict(update)
    for name, tensor in update.items():
        if tensor.dim() > 1 and (found := factors(tensor.flatten(1), energy)) is not None:
            del message[name]
            message |= {f"{name}/left": found[0], f"{name}/right": found[1]}
    return message


def factors(matrix: Tensor, energy: float) -> tuple[Tensor, Tensor] | None:
    """Two factors of the lowest rank that keeps `energy` of Σσ²; none if they would not be smaller than the matrix.

    A randomised decomposition (Halko et al. 2011): the leading singular vectors are found in the span of a few products
    with random vectors, of twice as many until they hold enough. An update has few that matter, and products are quick
    where a whole decomposition is not. What is kept is measured, not estimated; the rank may be one or two too high.
    """
    exact = matrix.double()
    most = (matrix.numel() - 1) // sum(matrix.shape)
    wanted = energy * exact.square().sum()
    size = min(FIRST_RANKS, most)
    while size:
        sketch = torch.randn(exact.shape[1], size, dtype=exact.dtype, generator=torch.Generator().manual_seed(0))
        basis = exact @ sketch.to(exact.device)
        for _ in range(POWERS):
            basis = exact @ (exact.T @ torch.linalg.qr(basis).Q)
        basis = torch.linalg.qr(basis).Q
        within = basis.T @ exact
        try:
            squares, vectors = torch.linalg.eigh(within @ within.T)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return None  # the update holds what is not a number any more
        kept = squares.flip(0).cumsum(0)
        rank = int((~(kept >= wanted)).sum()) + 1  # NaN is never enough
        if rank <= size - SPARE or rank <= size == most:
            first = vectors.flip(1)[:, :rank]
            return (basis @ first).to(matrix.dtype), (first.T @ within).to(matrix.dtype)
        size = min(2 * size, most) if size < most else 0
    return None


def rebuild(message: Mapping[str, Tensor], like: State) -> State:
    """What `compress` was given, as far as the energy goes."""
    return {
        name: message[name]
        if name in message
        else (message[f"{name}/left"] @ message[f"{name}/right"]).reshape(tensor.shape)
        for name, tensor in like.items()
    }
