"""GPFL: a valve lets the features through on two routes, one for all clients alike and one of each its own."""

from collections.abc import Sequence
from typing import cast

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model, Round, Stage
from fedexperts.methods.fedrod import Prior
from fedexperts.methods.message import Owner, State
from fedexperts.models import Parts
from fedexperts.task import ClientSpec


class Valve(nn.Module):
    """CoV: f ↦ σ[(γ + 1) ⊙ f + β], where γ and β depend on a condition alone (Eq. 3 and 4); σ is a ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in range(2)
        )

    def forward(self, features: Tensor, condition: Tensor) -> Tensor:
        return F.relu((self.scale(condition) + 1) * features + self.shift(condition))


class GPFL(Method):
    """Extractor φ, valve CoV(V) and category embeddings GCE(C) are shared, the head ψ is private.

    With Ĉ, the embeddings as they came this round, the condition of the global route is their mean g (Eq. 5), that of
    the personal route their mean p_i by the client's class shares α_i (Eq. 7). f^G and f^P are the features after the
    valve, and the prediction is ψ(f^P). All is trained together (Eq. 11):

    L = CE(ψ(f^P), y) + CE(cos(f^G, C), y) + λ·‖f^G − Ĉ_y‖ + μ/2·(‖V‖² + ‖C‖²).

    Of the paper: g and p_i from Ĉ (the authors' code takes the embeddings that the client itself had trained last), and
    the distance to Ĉ_y sample by sample (there of the whole batch at once, which grows with it). Of the code: p_i not
    divided once more by the number of classes, so that it is g where all classes are equally frequent, and μ as a
    weight decay, where Eq. 11 has norms that are not squared. α_i is that of the client's data in the first round.
    """

    name = "gpfl"
    title = "GPFL"
    source = (
        "Zhang et al. 2023: GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized "
        "Federated Learning, ICCV"
    )
    owners = {
        "extractor": Owner.SHARED,
        "valve": Owner.SHARED,
        "embeddings": Owner.SHARED,
        "head": Owner.PRIVATE,
        "prior": Owner.PRIVATE,
    }
    personal = "head"

    class Options(Frozen):
        magnitude: float = Field(
            0.01, ge=0, description="weight λ of the distance to the class's embedding (ResNet, fastText: 0.0001)"
        )
        decay: float = Field(
            0.1, ge=0, description="weight decay μ of valve and embeddings (ResNet, fastText: 0; a CNN for sensors: 1)"
        )

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        model = super().parts(client)
        width = cast(int, model["extractor"].features)
        return {
            **model,
            "valve": Valve(width),
            "embeddings": nn.Embedding(client.classes, width),
            "prior": Prior(client),
        }

    def stages(self, now: Round) -> Sequence[Stage]:
        return [Stage(("extractor", "valve", "embeddings", "head"), self.loss, self.train.epochs)]

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        """f^P: what the head sees."""
        return self._personal(model, model.extractor(x), received)

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        features, frozen = model.extractor(batch.x), received["embeddings.weight"]
        task = F.cross_entropy(model.head(self._personal(model, features, received)), batch.y)
        common = model.valve(features, frozen.mean(0))
        angle = F.cross_entropy(F.normalize(common) @ F.normalize(model.embeddings.weight).T, batch.y)
        magnitude = (common - frozen[batch.y]).norm(dim=1).mean()
        decay = sum(w.square().sum() for part in (model.valve, model.embeddings) for w in part.parameters()) / 2
        return cast(Tensor, task + angle + self.options.magnitude * magnitude + self.options.decay * decay)

    def _personal(self, model: Model, features: Tensor, received: State) -> Tensor:
        shares = model.prior.logs.exp()
        return cast(Tensor, model.valve(features, shares @ received["embeddings.weight"]))
