"""FD: clients share nothing but their mean logits of each class, and learn from the others' ones."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model, Reply, Round, Stage, Trained
from fedexperts.methods.classwise import rows_of_own_classes, sums
from fedexperts.methods.message import Message, Owner, State
from fedexperts.models import Parts
from fedexperts.task import ClientSpec


class Memory(nn.Module):
    """What a client sent last, and when: it does not learn from itself."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("logits", torch.zeros(classes, classes))
        self.register_buffer("own", torch.zeros(classes))
        self.register_buffer("round", torch.zeros(()))


class FD(Method):
    """L = CE + γ·H(softmax F̂_y, softmax F(x)); F̂ is the mean of the *other* clients' mean logits of the class.

    The paper takes the logits' mean over the steps of training; here it is taken with the trained model, over the same
    samples. With few clients in a round, a class that nobody sent keeps what was known of it.
    """

    name = "fd"
    title = "FD"
    source = "Jeong et al. 2018: Communication-Efficient On-Device Machine Learning: Federated Distillation"
    owners = {"extractor": Owner.PRIVATE, "head": Owner.PRIVATE, "memory": Owner.SHARED}

    class Options(Frozen):
        distillation: float = Field(1.0, ge=0, description="weight γ of the distillation")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        return super().parts(client) | {"memory": Memory(client.classes)}

    def start(self, model: Model) -> State:
        logits = model.memory.logits
        nobody = logits.new_zeros(len(logits))
        return {"logits.sum": logits, "logits.clients": nobody, "logits.round": nobody - 1}

    def stages(self, now: Round) -> Sequence[Stage]:
        return [Stage(("extractor", "head"), self.loss, self.train.epochs)]

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        memory = model.memory
        own = memory.own * (memory.round == received["logits.round"])  # where the sum has the client's own logits in it
        others = received["logits.clients"] - own
        teacher = (received["logits.sum"] - own[:, None] * memory.logits) / others.clamp(min=1)[:, None]
        logits = self.predict(model, batch.x, received)
        distilled = F.cross_entropy(logits, teacher.softmax(1)[batch.y], reduction="none")
        learned: Tensor = (distilled * (others > 0)[batch.y]).mean()
        return F.cross_entropy(logits, batch.y) + self.options.distillation * learned

    def collect(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.predict(model, x, received)

    def finish(self, after: Trained, now: Round) -> State:
        counts, means, _ = after.by_class
        return {
            "memory.logits": means,
            "memory.own": (counts > 0).to(means),
            "memory.round": means.new_tensor(now.number),
        }

    def reply(self, after: Trained, now: Round) -> Message:
        return rows_of_own_classes(after.by_class, "logits")

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        total, clients = sums(replies, "logits", server["logits.sum"], by_samples=False)
        new = clients > 0
        return {
            "logits.sum": torch.where(new[:, None], total, server["logits.sum"]),
            "logits.clients": torch.where(new, clients, server["logits.clients"]),
            "logits.round": torch.where(new, now.number, server["logits.round"]),
        }

    def kept(self) -> set[str]:
        return set(self.owners)
