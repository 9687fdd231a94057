"""DualFed: general features, and personal ones that a projection of the client's own makes of them; a head for each."""

from collections.abc import Sequence
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model, Round, Stage
from fedexperts.methods.message import Owner, State
from fedexperts.models import Parts
from fedexperts.task import ClientSpec


class Projection(nn.Sequential):
    """As wide at its end as at its beginning, so that a head can read either."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(
            nn.Linear(width, hidden), nn.ReLU(), nn.BatchNorm1d(hidden), nn.Linear(hidden, width), nn.BatchNorm1d(width)
        )


class DualFed(Method):
    """z = f(x) are general features, p = g_i(z) personal ones: the projection g_i and the head on p are private, the
    extractor f and the head on z are shared. The prediction is the sum of both heads' logits.

    First all but the shared head are trained, by CE(personal head(p), y) + λ·ℓ_con(p); then the shared head alone, by
    CE(head(z), y). ℓ_con is the supervised contrast over a batch: −log e^{s_ij/τ} / Σ_{k ≠ i} e^{s_ik/τ}, of a sample i
    the mean over the others j of its class, s the cosine. It is on p and not on z: what it takes from the features, it
    takes behind the projection.

    As in the authors' code are the layers of g_i, the first half as wide as the features, as many epochs for one stage
    as for the other, τ, and no contrast for a sample that is alone in its class. λ is not: it is 40 or 2 there, by data
    set, for large pre-trained extractors and a rate of 0.01, which small fresh ones do not stand at 0.1. The server
    weighs clients by samples, where there all count alike; an extractor's BatchNorm statistics go with it, where there
    they stay, and it is in evaluation mode while the shared head learns.
    """

    name = "dualfed"
    title = "DualFed"
    source = (
        "Zhu et al. 2024: DualFed: Enjoying both Generalization and Personalization in Federated Learning via "
        "Hierachical Representations, ACM MM"
    )
    owners = {
        "extractor": Owner.SHARED,
        "head": Owner.SHARED,
        "projection": Owner.PRIVATE,
        "personal_head": Owner.PRIVATE,
    }

    class Options(Frozen):
        contrast: float = Field(1.0, ge=0, description="weight λ of the contrast between classes")
        temperature: float = Field(0.2, gt=0, description="temperature τ of the contrast")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        model = super().parts(client)
        personal = super().parts(client)["head"]  # of the same shape, with a beginning of its own
        width = cast(int, model["extractor"].features)
        return {**model, "projection": Projection(width, max(1, width // 2)), "personal_head": personal}

    def stages(self, now: Round) -> Sequence[Stage]:
        return [
            Stage(("extractor", "projection", "personal_head"), self.loss, self.train.epochs),
            Stage(("head",), self.general_loss, self.train.epochs),
        ]

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        """Both: general features, then personal ones."""
        general = model.extractor(x)
        return torch.cat([general, model.projection(general)], dim=1)

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        general, personal = self.represent(model, x, received).chunk(2, dim=1)
        return cast(Tensor, model.head(general) + model.personal_head(personal))

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        personal = model.projection(model.extractor(batch.x))
        contrast = class_contrast(personal, batch.y, self.options.temperature)
        return F.cross_entropy(model.personal_head(personal), batch.y) + self.options.contrast * contrast

    def general_loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        return F.cross_entropy(model.head(model.extractor(batch.x)), batch.y)


def class_contrast(features: Tensor, y: Tensor, temperature: float) -> Tensor:
    """How far samples are from others of their class, among all others of the batch; 0 for one alone in its class."""
    directions = F.normalize(features, dim=1)
    oneself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    nearness = directions @ directions.T / temperature
    nearness = nearness.masked_fill(oneself, torch.finfo(nearness.dtype).min)
    alike = ((y[:, None] == y) & ~oneself).to(features)
    logs = torch.where(oneself, 0, nearness.log_softmax(1))
    return -((alike * logs).sum(1) / alike.sum(1).clamp(min=1)).mean()
