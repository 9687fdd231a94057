"""FedRoD: a generic head that is robust to the client's class mix, and a personal one that makes use of it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.methods.base import Batch, Method, Model, Round, Stage
from fedexperts.methods.message import Owner, State
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

ABSENT = 1e-12
"""The share of a class that a client does not have: next to nothing, so that one that comes later has a finite loss."""


class Prior(nn.Module):
    """The logarithms of the classes' shares in a client's training data."""

    def __init__(self, client: ClientSpec) -> None:
        super().__init__()
        counts = torch.tensor(client.label_counts, dtype=torch.get_default_dtype())
        self.register_buffer("logs", (counts / client.samples).clamp(min=ABSENT).log())


class FedRoD(Method):
    """Extractor f and generic head h_G by balanced softmax, the personal head h_P by cross-entropy on top of both:

    L = CE(h_G(f(x)) + log prior, y) + CE(h_G(f(x)) + h_P(f(x)), y), where the second term moves h_P alone.

    The prediction is the sum of both heads, without the prior. This is the paper's linear h_P, not the hypernetwork.
    The prior is that of the client's data in the first round; under drift it stays so.
    """

    name = "fedrod"
    title = "FedRoD"
    source = "Chen & Chao 2022: On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR"
    owners = {
        "extractor": Owner.SHARED,
        "head": Owner.SHARED,
        "personal_head": Owner.PRIVATE,
        "prior": Owner.PRIVATE,
    }
    personal = "personal_head"

    def parts(self, client: ClientSpec) -> Parts:
        model = super().parts(client)
        personal = super().parts(client)["head"]  # of the same shape, with a beginning of its own
        return {**model, "personal_head": personal, "prior": Prior(client)}

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        generic, personal = self._heads(model, x, received)
        return generic + personal

    def stages(self, now: Round) -> Sequence[Stage]:
        return [Stage(("extractor", "head", "personal_head"), self.loss, self.train.epochs)]

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        generic, personal = self._heads(model, batch.x, received)
        balanced = F.cross_entropy(generic + model.prior.logs, batch.y)
        return balanced + F.cross_entropy(generic.detach() + personal, batch.y)

    def _heads(self, model: Model, x: Tensor, received: State) -> tuple[Tensor, Tensor]:
        """Both heads' logits; the personal one's move nothing but itself."""
        features = self.represent(model, x, received)
        return model.head(features), model.personal_head(features.detach())
