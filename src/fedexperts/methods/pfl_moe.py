"""PFL-MoE: a one-layer gate mixes the outputs of the global model and of the client's own expert."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model, Round, Stage
from fedexperts.methods.message import Message, Owner, State
from fedexperts.models import Classifier, Parts, flat
from fedexperts.task import ClientSpec

TINY = 1e-12


class GlobalAndLocal(Method):
    """ŷ = g_G(x)·global(x) + g_L(x)·expert(x), on probabilities; a client's gate g says how much each model counts."""

    owners = {"global_model": Owner.SHARED, "expert": Owner.PRIVATE, "gate": Owner.PRIVATE}
    experts = ("global", "local")

    def parts(self, client: ClientSpec) -> Parts:
        """Both models; the gate is the method's own affair."""
        return {name: Classifier(client.model, client.shape, client.classes) for name in ("global_model", "expert")}

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        return cast(Tensor, model.gate(x))

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        return cast(Tensor, model.expert.extractor(x))

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        """The logarithms of the mixed probabilities: logits as good as any."""
        outputs = torch.stack([model.global_model(x).softmax(1), model.expert(x).softmax(1)], dim=1)
        return (self.weigh(model, x, received)[:, :, None] * outputs).sum(1).clamp(min=TINY).log()


class PFLMoE(GlobalAndLocal):
    """ŷ = g(x)·expert(x) + (1 − g(x))·global(x), on probabilities; g one linear layer on the image and a sigmoid.

    In a round the expert starts as the global model and is fine-tuned on one share of the client's data, the gate is
    trained on the rest with both models fixed, and last the global model is trained on all of it, as in FedAvg. Expert
    and global model have one architecture, so all clients have the same.
    """

    name = "pfl-moe"
    title = "PFL-MoE"
    source = "Guo et al. 2021: PFL-MoE: Personalized Federated Learning Based on Mixture of Experts"

    class Options(Frozen):
        gate_share: float = Field(0.2, gt=0, lt=1, description="share of the client's data that only the gate sees")
        gate_epochs: int = Field(1, ge=1, description="epochs of the gate in a round")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        models = super().parts(client)  # first: the global one starts as FedAvg's
        reads, inputs = flat(client.shape)
        return models | {"gate": nn.Sequential(reads, nn.Linear(inputs, 1), nn.Sigmoid())}

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        """The global model; the expert begins as its copy."""
        copies = {name.replace("global_model.", "expert."): tensor for name, tensor in message.tensors.items()}
        return {**message.tensors, **copies}

    def personalise(self, own: Mapping[str, Tensor], message: Message) -> State:
        return dict(message.tensors)  # the expert stays as it was fine-tuned

    def stages(self, now: Round) -> Sequence[Stage]:
        cut = 1 - self.options.gate_share
        return [
            Stage(("expert",), self.expert_loss, self.train.epochs, share=(0, cut)),
            Stage(("gate",), self.loss, self.options.gate_epochs, share=(cut, 1)),
            Stage(("global_model",), self.global_loss, self.train.epochs),
        ]

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        local = model.gate(x)
        return torch.cat([1 - local, local], dim=1)

    def expert_loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        return F.cross_entropy(model.expert(batch.x), batch.y)

    def global_loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        return F.cross_entropy(model.global_model(batch.x), batch.y)
