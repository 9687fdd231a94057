"""FedTGP: FedProto whose global prototypes are trained at the server, so that classes stay apart."""

from collections.abc import Sequence
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedexperts.methods.at_server import held, in_batches, loaded, shuffled, step
from fedexperts.methods.base import Model, Reply, Round
from fedexperts.methods.classwise import PROTOTYPES, between_classes, margin_contrast, next_prototypes, sums
from fedexperts.methods.fedproto import FedProto
from fedexperts.methods.message import Message, State, select
from fedexperts.task import ClientSpec

_TRAINER = "trainer"
_MEANS = f"{PROTOTYPES}.means"


class Trainer(nn.Module):
    """P̂ = F(P̌): a vector P̌^c for each class, and the two layers F that all of them go through."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(classes, width))
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
        return cast(Tensor, self.layers(self.vectors))


class FedTGP(FedProto):
    """Up go the clients' prototypes P_i^c, down come the trained ones P̂^c: L = CE + λ·‖f(x) − P̂^y‖² as in FedProto.

    The server trains P̂ on what came in the round, each P_i^c a sample of class c, by the contrast
    −log e^{−φ(P_i^c, P̂^c) − δ} / (e^{−φ(P_i^c, P̂^c) − δ} + Σ_{c' ≠ c} e^{−φ(P_i^c, P̂^{c'})}), φ the Euclidean distance.
    Its margin δ follows from how far apart the classes are: min(max_c min_{c' ≠ c} φ(Q^c, Q^{c'}), τ), Q^c the mean of
    all P_i^c.

    As in the authors' code are this δ, P̂'s two layers, as wide as the features, the clients' batch at the server, τ and
    S. So is the server's rate, but it is one of its own here: at the clients' 0.1 the ReLUs between its layers die, and
    all P̂^c become one. λ is for a distance that is a mean over the features, and 10 in their command, with a rate of
    0.01 at the clients; with 0.1, features and margin then drive each other up, and models come apart. A class that
    nobody has sent yet pulls nowhere, as in `fedproto`. Their code predicts by the nearest P̂
    (`--predict-with prototypes`); here it is the client's own head that does.
    """

    name = "fedtgp"
    title = "FedTGP"
    source = (
        "Zhang et al. 2024: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for "
        "Data and Model Heterogeneity in Federated Learning, AAAI"
    )

    class Options(FedProto.Options):
        margin_limit: float = Field(100.0, ge=0, description="the largest margin τ between classes at the server")
        server_epochs: int = Field(100, ge=1, description="how often the server goes through a round's prototypes, S")
        server_lr: float = Field(0.01, gt=0, description="the server's learning rate, with SGD")
        server_batch: int | None = Field(
            None, ge=1, description="prototypes in a step of the server (default: --batch-size)"
        )

    options: Options

    def start(self, model: Model) -> State:
        trainer = Trainer(*model.head.weight.shape).to(model.head.weight)
        return super().start(model) | held(trainer, _TRAINER)

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        return Message(select(server, {PROTOTYPES}))

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        trainer = self._train(server, replies, now)
        return next_prototypes(server, replies) | held(trainer, _TRAINER) | {_MEANS: trainer().detach()}

    def margin(self, server: State, replies: Sequence[Reply]) -> Tensor:
        """δ: the largest of the classes' distances to the nearest other one, or τ where that is less."""
        total, clients = sums(replies, PROTOTYPES, server[_MEANS], by_samples=False)
        least = between_classes(total / clients.clamp(min=1)[:, None], clients > 0).amin(1)
        return torch.where(least.isfinite(), least, 0).amax().clamp(max=self.options.margin_limit)

    def _train(self, server: State, replies: Sequence[Reply], now: Round) -> Trainer:
        """The server's P̂ after this round's steps."""
        trainer = loaded(lambda: Trainer(*server[_MEANS].shape), server, _TRAINER)
        rows = torch.cat([reply.message.tensors[_MEANS] for reply in replies])
        classes = torch.cat([reply.message.tensors[f"{PROTOTYPES}.classes"] for reply in replies])
        margin, size = self.margin(server, replies), self.options.server_batch or self.train.batch_size
        optimizer = torch.optim.SGD(trainer.parameters(), self.options.server_lr)

        def learn(some: Tensor, of: Tensor) -> None:
            step(optimizer, margin_contrast(some, of, trainer(), margin))

        order = shuffled(len(rows), self.options.server_epochs, now.stream(PROTOTYPES), rows.device)
        in_batches(learn, (rows, classes), order, size)
        return trainer
