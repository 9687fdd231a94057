"""FedMoE: a gate mixes, sample by sample, a shared small extractor with the client's own one."""

from collections.abc import Mapping, Sequence
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedexperts.config import NumbersInTurn
from fedexperts.errors import MethodError
from fedexperts.methods.base import Method, Model, Round, Stage
from fedexperts.methods.message import Message, Owner, State
from fedexperts.methods.shared_model import SharedModel, shared_model
from fedexperts.models import Gate, GateNorms, Parts, build, flat
from fedexperts.task import ClientSpec


class FedMoE(Method):
    """Parts: the global expert G(θ), the local expert F_ex(ω), the gate H(φ), the head F_hd.

    R = α_G·G(x) + α_F·F_ex(x) (Eq. 3-5), ŷ = F_hd(R) (Eq. 6), one loss and one backward pass for all four parts
    (Eq. 7-8), θ = Σ n_k/n θ_k (Eq. 9). η_θ = η_ω; the gate has its own rate η_φ. G is the extractor of `shared_model`,
    in the paper that of its smallest CNN.
    """

    name = "fedmoe"
    title = "FedMoE"
    source = "Yi et al. 2024: FedMoE: Data-Level Personalization with Mixture of Experts (also cited as pFedMoE)"
    owners = {
        "global_expert": Owner.SHARED,
        "local_expert": Owner.PRIVATE,
        "gate": Owner.PRIVATE,
        "head": Owner.PRIVATE,
    }

    experts = ("global", "local")

    class Options(SharedModel):
        gate_width: NumbersInTurn = Field((64,), description="neurons m of the gate; several go to clients in turn")
        gate_lr: float | None = Field(None, gt=0, description="learning rate η_φ of the gate (default: --lr)")
        gate_input: Literal["pixels", "features"] = Field(
            "pixels",
            description="what the gate reads: the image (of a text: the mean embedding of its words, the gate's own), "
            "or both experts' features (not the paper's)",
        )
        gate_norms: GateNorms = Field(
            "printed", description="the gate's normalisations: all three, without the scores' (inner), none"
        )
        gate_fixed: float | None = Field(
            None, ge=0, le=1, description="no gate: this weight for the global expert, the rest for the local one"
        )
        evaluate_with: Literal["aggregated", "own"] = Field(
            "aggregated", description="global expert in use: the server's θ, or the client's own θ_k"
        )

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        local = build(client.model, client.shape, client.classes)  # first: it starts as it would alone
        shared = shared_model(self.options, client)
        small = build(shared, client.shape, client.classes)
        features = local["extractor"].features
        if features != small["extractor"].features:
            raise MethodError(
                f"{self.name} adds what both experts give, but {client.called}'s {client.model} ends in "
                f"{features} features and the shared {shared} in {small['extractor'].features}; use models that end "
                "alike, such as cnn1 … cnn5, or another --shared-model"
            )
        from_pixels = self.options.gate_input == "pixels"
        reads, inputs = flat(client.shape) if from_pixels else (nn.Flatten(), 2 * cast(int, features))
        width = self.options.gate_width[client.id % len(self.options.gate_width)]
        return {
            "global_expert": small["extractor"],
            "local_expert": local["extractor"],
            "gate": Gate(inputs, width, norms=self.options.gate_norms, reads=reads),
            "head": local["head"],
        }

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.weights(model, x, model.global_expert(x), model.local_expert(x))

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        of_global, of_local = model.global_expert(x), model.local_expert(x)
        return mixed(self.weights(model, x, of_global, of_local), of_global, of_local)

    def weights(self, model: Model, x: Tensor, of_global: Tensor, of_local: Tensor) -> Tensor:
        """(α_G, α_F) of each sample."""
        if (fixed := self.options.gate_fixed) is not None:
            return torch.cat([of_global.new_full((x.shape[0], 1), share) for share in (fixed, 1 - fixed)], dim=1)
        read = x if self.options.gate_input == "pixels" else torch.cat([of_global, of_local], dim=1).detach()
        return cast(Tensor, model.gate(read))

    def stages(self, now: Round) -> Sequence[Stage]:
        rates = {"gate": self.options.gate_lr} if self.options.gate_lr else {}
        return [Stage(tuple(self.owners), self.loss, self.train.epochs, rates)]

    def kept(self) -> set[str]:
        return set(self.owners) if self.options.evaluate_with == "own" else super().kept()

    def personalise(self, own: Mapping[str, Tensor], message: Message) -> State:
        return {} if self.options.evaluate_with == "own" else super().personalise(own, message)


def mixed(weights: Tensor, of_global: Tensor, of_local: Tensor) -> Tensor:
    """α_G·(the global expert's) + α_F·(the local expert's)."""
    return weights[:, :1] * of_global + weights[:, 1:] * of_local
