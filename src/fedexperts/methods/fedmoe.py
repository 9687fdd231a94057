"""FedMoE: a gate mixes, sample by sample, a shared small extractor with the client's own one."""

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from pydantic import Field
from torch import Tensor

from fedexperts.config import Frozen, NumbersInTurn
from fedexperts.errors import MethodError
from fedexperts.methods.base import Method, Model, Round, Stage
from fedexperts.methods.message import Message, Owner, State
from fedexperts.models import SMALLEST, Gate, Parts, build
from fedexperts.task import ClientSpec


class FedMoE(Method):
    """Parts: the global expert G(θ), the local expert F_ex(ω), the gate H(φ), the head F_hd.

    R = α_G·G(x) + α_F·F_ex(x) (Eq. 3-5), ŷ = F_hd(R) (Eq. 6), one loss and one backward pass for all four parts
    (Eq. 7-8), θ = Σ n_k/n θ_k (Eq. 9). η_θ = η_ω; the gate has its own rate η_φ.
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

    class Options(Frozen):
        gate_width: NumbersInTurn = Field((64,), description="neurons m of the gate; several go to clients in turn")
        gate_lr: float | None = Field(None, gt=0, description="learning rate η_φ of the gate (default: --lr)")
        evaluate_with: Literal["aggregated", "own"] = Field(
            "aggregated", description="global expert in use: the server's θ, or the client's own θ_k"
        )

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        local = build(client.model, client.shape, client.classes)  # first: it starts as it would alone
        small = build(SMALLEST, client.shape, client.classes)
        if local["extractor"].features != small["extractor"].features:
            raise MethodError(
                f"{self.name} adds the features of both experts, but client {client.id}'s {client.model} ends in "
                f"{local['extractor'].features} and {SMALLEST} in {small['extractor'].features}; use cnn1 … cnn5"
            )
        return {
            "global_expert": small["extractor"],
            "local_expert": local["extractor"],
            "gate": Gate(client.shape, self.gate_width(client)),
            "head": local["head"],
        }

    def gate_width(self, client: ClientSpec) -> int:
        return self.options.gate_width[client.id % len(self.options.gate_width)]

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        return cast(Tensor, model.gate(x))

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        weights = self.weigh(model, x, received)
        return cast(Tensor, weights[:, :1] * model.global_expert(x) + weights[:, 1:] * model.local_expert(x))

    def stages(self, now: Round) -> Sequence[Stage]:
        rates = {"gate": self.options.gate_lr} if self.options.gate_lr else {}
        return [Stage(tuple(self.owners), self.loss, self.train.epochs, rates)]

    def kept(self) -> set[str]:
        return set(self.owners) if self.options.evaluate_with == "own" else super().kept()

    def personalise(self, own: Mapping[str, Tensor], message: Message) -> State:
        return {} if self.options.evaluate_with == "own" else super().personalise(own, message)
