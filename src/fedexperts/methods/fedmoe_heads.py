"""FedMoE-Heads: a head for each expert, and a gate that learns from data of its own. Ours, not the paper's."""

from collections.abc import Sequence
from typing import Literal, cast

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.methods.base import Batch, Model, Round, Stage
from fedexperts.methods.fedmoe import FedMoE, mixed
from fedexperts.methods.message import Owner, State
from fedexperts.models import GateNorms, Parts
from fedexperts.task import ClientSpec


class FedMoEHeads(FedMoE):
    """ŷ = α_G·H_G(G(x)) + α_F·H_F(F(x)): outputs are mixed, not features.

    The gate never teaches the experts: L = CE(H_G(G(x))) + CE(H_F(F(x))), so the local expert learns what Standalone
    would and the global one what FedPer would. The gate learns first, from a share of the data that the experts never
    train on, while the global expert is as the server sent it, which is how it will be used. It reads both experts'
    features, has no normalisation that forces its weights apart, and starts with equal weights.
    docs/results/fedmoe.md shows what each difference from FedMoE is worth.
    """

    name = "fedmoe-heads"
    title = "FedMoE-Heads"
    source = "this package: FedMoE with a gate that does not hurt (docs/results/fedmoe.md)"
    owners = FedMoE.owners | {"global_head": Owner.PRIVATE}

    class Options(FedMoE.Options):
        gate_input: Literal["pixels", "features"] = Field(
            "features", description="what the gate reads: the image, or both experts' features"
        )
        gate_norms: GateNorms = Field("none", description="the gate's normalisations: printed, inner, none")
        gate_share: float = Field(0.1, gt=0, lt=1, description="share of the client's data that only the gate sees")
        gate_epochs: int = Field(5, ge=1, description="epochs of the gate at the start of a round")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        parts = super().parts(client)
        scores = cast(nn.Linear, cast(nn.Sequential, parts["gate"])[5])
        nn.init.zeros_(scores.weight)
        nn.init.zeros_(scores.bias)
        return parts | {"global_head": nn.Linear(cast(nn.Linear, parts["head"]).in_features, client.classes)}

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        of_global, of_local = model.global_expert(x), model.local_expert(x)
        weights = self.weights(model, x, of_global, of_local)
        return mixed(weights, model.global_head(of_global), model.head(of_local))

    def stages(self, now: Round) -> Sequence[Stage]:
        [whole], cut = super().stages(now), self.options.gate_share
        gate = Stage(("gate",), self.loss, self.options.gate_epochs, whole.rates, share=(0, cut))
        experts = tuple(part for part in self.owners if part != "gate")
        fixed = self.options.gate_fixed is not None  # nothing to learn; the experts do not get its data all the same
        return [gate] * (not fixed) + [Stage(experts, self.expert_loss, self.train.epochs, share=(cut, 1))]

    def expert_loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        """Each expert answers for itself."""
        globally = model.global_head(model.global_expert(batch.x))
        locally = model.head(model.local_expert(batch.x))
        return F.cross_entropy(globally, batch.y) + F.cross_entropy(locally, batch.y)
