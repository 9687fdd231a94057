"""FedPAC: features are aligned by class, and each client's head is the mixture of all heads that suits its data."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, ByClass, Method, Model, Reply, Round, Stage, Trained, weighted_mean
from fedexperts.methods.classwise import (
    PROTOTYPES,
    distance_to_prototypes,
    next_prototypes,
    no_prototypes,
    rows_of_own_classes,
)
from fedexperts.methods.message import Message, State, select
from fedexperts.methods.replaced import as_received
from fedexperts.task import ClientSpec

Array = npt.NDArray[np.float64]


class FedPAC(Method):
    """The head is trained first, with the extractor fixed, by cross-entropy; then the extractor, with the head fixed,
    by CE + λ·‖f(x) − c_y‖²/d, c the class centroids of all clients (the prototypes of FedProto).

    The server averages the extractors by samples, and gives client i the head Σ_j α_ij·head_j, α_i on the simplex with
    the least ‖Σ_j α_ij·(h_i − h_j)‖² + Σ_j α_ij²·V_j (Section 4.2): bias and variance of h_j, the class-wise means of
    the features times the classes' shares. They are taken before training, with the extractor that all got, as features
    of different extractors cannot be compared. A client that has not taken part yet has the first head.

    As the paper has it, without two additions of the authors' code: weights below 0.001 become zero there, and a class
    without a global centroid is pulled to the client's own.
    """

    name = "fedpac"
    title = "FedPAC"
    source = "Xu et al. 2023: Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR"

    class Options(Frozen):
        alignment: float = Field(1.0, ge=0, description="weight λ of the distance to the classes' centroids")
        head_epochs: int = Field(1, ge=1, description="epochs for the head at the start of a round")
        head_lr: float | None = Field(
            None, gt=0, description="learning rate of the head (default: --lr; the authors use ten times that)"
        )

    options: Options

    def stages(self, now: Round) -> Sequence[Stage]:
        rates = {"head": self.options.head_lr} if self.options.head_lr else {}
        return [
            Stage(("head",), super().loss, self.options.head_epochs, rates),
            Stage(("extractor",), self.loss, self.train.epochs),
        ]

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        features = self.represent(model, batch.x, received)
        distance = distance_to_prototypes(features, batch.y, received)
        return F.cross_entropy(model.head(features), batch.y) + self.options.alignment * distance

    def collect(self, model: Model, x: Tensor, received: State) -> Tensor:
        """Features of the trained extractor, then those of the one that all got, and their squared length."""
        before = as_received(model, "extractor", received, x)
        return torch.cat([self.represent(model, x, received), before, before.square().sum(1, keepdim=True)], dim=1)

    # --- messages

    def start(self, model: Model) -> State:
        return super().start(model) | no_prototypes(model)

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        common = select(server, {"extractor", "head", PROTOTYPES})
        return Message({name: server.get(_of(client.id, name), tensor) for name, tensor in common.items()})

    def reply(self, after: Trained, now: Round) -> Message:
        counts, rows, own = after.by_class
        width = rows.shape[1] // 2
        trained, before, squares = torch.split(rows, [width, width, 1], dim=1)
        shares = (counts / counts.sum())[:, None]
        means = shares * before
        variance = ((shares * squares).sum() - means.square().sum()) / counts.sum()
        return Message(
            {
                **super().reply(after, now).tensors,
                **rows_of_own_classes(ByClass(counts, trained, own), PROTOTYPES).tensors,
                "statistics.means": means[own],  # h_j, of the classes that the client has
                "statistics.variance": variance,
            },
            {"samples": after.client.samples},
        )

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        extractor = weighted_mean(replies, {"extractor"})
        return {**server, **extractor, **next_prototypes(server, replies), **self._heads(server, replies)}

    def _heads(self, server: State, replies: Sequence[Reply]) -> State:
        """Σ_j α_ij·head_j for each client i that replied."""
        weights = torch.from_numpy(self.weights(server, replies))
        heads: State = {}
        for name in select(replies[0].message.tensors, {"head"}):
            stacked = torch.stack([reply.message.tensors[name] for reply in replies])
            mixtures = torch.tensordot(weights.to(stacked), stacked, dims=1)
            heads |= {_of(reply.client, name): head for reply, head in zip(replies, mixtures, strict=True)}
        return heads

    def weights(self, server: State, replies: Sequence[Reply]) -> Array:
        """α: a row for each client that replied, over all of them."""
        means, variances = [], []
        for reply in replies:
            sent = reply.message.tensors
            full = torch.zeros_like(server[f"{PROTOTYPES}.means"], dtype=torch.float64)
            full[sent[f"{PROTOTYPES}.classes"]] = sent["statistics.means"].double()
            means.append(full.flatten())
            variances.append(sent["statistics.variance"].double())
        return combination_weights(torch.stack(means).cpu().numpy(), torch.stack(variances).cpu().numpy())


def combination_weights(means: Array, variances: Array) -> Array:
    """For each row i of `means` (h): the α ≥ 0 with sum 1 that makes ‖Σ_j α_j (h_i − h_j)‖² + Σ_j α_j² V_j least.

    That is ‖Aα‖² for the columns A_j = (h_i − h_j, √V_j e_j). Where x ≥ 0 makes ‖Ax‖² + (Σx − 1)² least, x/Σx is that
    α: along each direction α the best length leaves q/(1 + q) of q = ‖Aα‖², which grows with q. So the programme is one
    of non-negative least squares, which ends after finitely many steps with nothing to tune.
    """
    clients = len(means)
    placed = np.linalg.qr(means.T).R  # the same distances in as few dimensions as there are clients
    spread = np.diag(np.sqrt(variances.clip(min=0)))  # rounding may take a variance of nothing below zero
    rows = []
    for own in placed.T:
        columns = np.vstack([own[:, None] - placed, spread])
        columns /= np.linalg.norm(columns, axis=0).max() or 1.0
        found, _ = nnls(np.vstack([columns, np.ones(clients)]), np.append(np.zeros(len(columns)), 1.0))
        rows.append(found / found.sum())
    return np.stack(rows)


def _of(client: int, name: str) -> str:
    """The server's name for a tensor of one client."""
    return f"client{client}.{name}"
