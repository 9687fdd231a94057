"""MOON: FedAvg whose clients' features are drawn to the global model's and away from those of their own last model."""

import copy
from collections.abc import Mapping, Sequence

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model, Round, Stage
from fedexperts.methods.message import Message, Owner, State, inside
from fedexperts.methods.replaced import as_received
from fedexperts.models import Parts
from fedexperts.task import ClientSpec


class Moon(Method):
    """L = CE + μ·ℓ_con, ℓ_con = −log( e^{sim(z, z_glob)/τ} / (e^{sim(z, z_glob)/τ} + e^{sim(z, z_prev)/τ}) ).

    z are the extractor's features, z_glob those of the extractor that the server sent, z_prev those of the one that the
    client had at the end of its last round; sim is the cosine. In a client's first round that is the first global one,
    so ℓ_con moves nothing.

    The paper puts a projection (two layers, 256 wide) between extractor and head and contrasts what comes out of it;
    here, as in PM-MoE's tables, the models are the same for all methods, and z is what the head sees. The paper tries
    μ of 0.1, 1, 5 and 10.
    """

    name = "moon"
    title = "MOON"
    source = "Li et al. 2021: Model-Contrastive Federated Learning, CVPR"
    owners = {"extractor": Owner.SHARED, "head": Owner.SHARED, "previous": Owner.PRIVATE}

    class Options(Frozen):
        mu: float = Field(1.0, ge=0, description="weight μ of the contrast")
        temperature: float = Field(0.5, gt=0, description="temperature τ of the contrast")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        model = super().parts(client)
        return {**model, "previous": copy.deepcopy(model["extractor"])}

    def stages(self, now: Round) -> Sequence[Stage]:
        return [Stage(("extractor", "head"), self.loss, self.train.epochs)]

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        own, previous = self.represent(model, batch.x, received), model.previous(batch.x)
        everyones = as_received(model, "extractor", received, batch.x)
        further = F.cosine_similarity(own, previous) - F.cosine_similarity(own, everyones)
        contrast = F.softplus(further / self.options.temperature).mean()
        return F.cross_entropy(model.head(own), batch.y) + self.options.mu * contrast

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        """The global model; the extractor that the client still has is its previous one."""
        previous = {f"previous.{name}": tensor.clone() for name, tensor in inside(own, "extractor").items()}
        return {**previous, **message.tensors}

    def kept(self) -> set[str]:
        return {"extractor"}
