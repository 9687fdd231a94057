"""FedCP: for each sample a policy splits the features between a generic head and a personal one."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model, Round, Stage, Trained
from fedexperts.methods.message import Message, Owner, State
from fedexperts.methods.replaced import as_received
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

BANDWIDTHS = (10, 15, 20, 50)
"""Of the kernels that features are compared with, as in the authors' code."""


class Policy(nn.Module):
    """CPN: context ↦ (r, s), samples × 2 × width, where r + s = 1 in every feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scores = nn.Sequential(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU())

    def forward(self, context: Tensor) -> Tensor:
        return cast(Tensor, self.scores(context).unflatten(1, (2, -1)).softmax(1))


class Condition(nn.Module):
    """v_i/‖v_i‖, v_i the sum of the rows of the personal head as it was at the start of the round."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("vector", torch.zeros(width))


class FedCP(Method):
    """With features h = f(x): (r, s) = CPN(h ⊙ v_i/‖v_i‖), ŷ = personal(r ⊙ h) + generic(s ⊙ h).

    L = CE(ŷ, y) + λ·MMD(h, h^g), h^g the features of the extractor as it came this round. Extractor, policy and
    personal head are trained; the generic head is fixed. What a client sends of heads is the mean of both, and the
    server averages these, so a server that remembers what it sent can work out a personal head from what comes back.

    As in the authors' code are the mean of both heads, v_i as it is at the start of a round, the kernels of the MMD and
    λ. Not as there: r and s are a softmax without Gumbel noise, which the code adds in use too, so that a prediction
    can be repeated; and in a client's first round v_i is that of its first personal head, not random.
    """

    name = "fedcp"
    title = "FedCP"
    source = (
        "Zhang et al. 2023: FedCP: Separating Feature Information for Personalized Federated Learning via Conditional "
        "Policy, KDD"
    )
    owners = {
        "extractor": Owner.SHARED,
        "head": Owner.SHARED,
        "policy": Owner.SHARED,
        "personal_head": Owner.PRIVATE,
        "condition": Owner.PRIVATE,
    }
    personal = "personal_head"
    deducible = True  # 2 · the reply − the generic head that was sent

    class Options(Frozen):
        alignment: float = Field(
            5.0, ge=0, description="weight λ of the features' distance (MMD) from those of the extractor that came"
        )

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        model = super().parts(client)
        personal = super().parts(client)["head"]  # of the same shape, with a beginning of its own
        width = cast(int, model["extractor"].features)
        return {**model, "policy": Policy(width), "personal_head": personal, "condition": Condition(width)}

    def stages(self, now: Round) -> Sequence[Stage]:
        return [Stage(("extractor", "policy", "personal_head"), self.loss, self.train.epochs)]

    def separate(self, model: Model, features: Tensor) -> tuple[Tensor, Tensor]:
        """The features' personal part r ⊙ h, and the generic one s ⊙ h."""
        personal, generic = model.policy(features * model.condition.vector).unbind(1)
        return personal * features, generic * features

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self._answer(model, self.represent(model, x, received))

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        features = self.represent(model, batch.x, received)
        distance = discrepancy(features, as_received(model, "extractor", received, batch.x))
        return F.cross_entropy(self._answer(model, features), batch.y) + self.options.alignment * distance

    def _answer(self, model: Model, features: Tensor) -> Tensor:
        personal, generic = self.separate(model, features)
        return cast(Tensor, model.personal_head(personal) + model.head(generic))

    # --- messages

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        direction = F.normalize(own["personal_head.weight"].sum(0), dim=0)
        return super().receive(own, message) | {"condition.vector": direction}

    def reply(self, after: Trained, now: Round) -> Message:
        sent = super().reply(after, now)
        heads = {n: (t + after.own[f"personal_{n}"]) / 2 for n, t in sent.tensors.items() if n.startswith("head.")}
        return Message({**sent.tensors, **heads}, sent.numbers)

    def kept(self) -> set[str]:
        return {"personal_head"}  # the condition follows from it


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """MMD: how far apart two sets of as many samples are, in the space of the kernels Σ_b exp(−‖u − v‖²/2b)."""
    both = torch.cat([x, y])
    products = both @ both.T
    lengths = products.diagonal()
    distances = lengths[:, None] + lengths - 2 * products
    kernel = torch.stack([torch.exp(-distances / (2 * width)) for width in BANDWIDTHS]).sum(0)
    means = torch.cat([torch.ones_like(lengths[: len(x)]), -torch.ones_like(lengths[len(x) :])]) / len(x)
    return means @ kernel @ means
