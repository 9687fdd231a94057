"""FedGC: clients know the embeddings of their own classes only; the server keeps them apart from everyone else's."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Method, Model, Reply, Round, Stage, Trained, weighted_mean
from fedexperts.methods.message import Message, Owner, State, select
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

ABSENT = -1e4
"""The logit of a class that a client has not: a number, so that it can be told from a model that has diverged."""
_ROWS = "embeddings.rows"


class OwnClasses(nn.Module):
    """Leaves a client's softmax to the classes that it has training samples of."""

    own: Tensor

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("own", torch.tensor(counts) > 0)

    def forward(self, logits: Tensor) -> Tensor:
        return torch.where(self.own, logits, ABSENT)


class FedGC(Method):
    """Client k has the extractor θ, which is averaged by samples, and W_k: an embedding w, a row of its head, of each
    class that it has. Its softmax knows these classes only, so nothing takes its w away from other clients' samples.

    The server knows all W_k and does that in their stead: W ← W − λ·η·∇Reg(W), η the clients' learning rate,
    Reg(W) = Σ_c −log( e^{ẇ_c·ẇ_c} / (e^{ẇ_c·ẇ_c} + Σ_z Σ_j e^{w_zj·ẇ_c}) ) over the clients z that have not c. A dot
    stops the gradient: ẇ_c stands for the samples of class c, which the server has not. Then W_k goes back to client k,
    and to no other.

    In the paper every class (a person's face) belongs to one client. Where several have one, ẇ_c is the mean of theirs,
    and it counts once; those who have it need no correction, their own samples of it do the same. Rows of clients that
    were not sampled are corrected too. Heads have no bias, embeddings are not normalised. The classes of a client are
    those of the first round, also under drift.
    """

    name = "fedgc"
    title = "FedGC"
    source = "Niu & Deng 2022: Federated Learning for Face Recognition with Gradient Correction, AAAI"
    owners = {
        "extractor": Owner.SHARED,
        "head": Owner.SHARED,  # the client's own, but the server has a copy
        "classes": Owner.SHARED,  # likewise
    }

    class Options(Frozen):
        correction: float = Field(1.0, ge=0, description="the server's step λ, as a multiple of --lr")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        extractor = super().parts(client)["extractor"]
        return {
            "extractor": extractor,
            "head": nn.Linear(cast(int, extractor.features), client.classes, bias=False),
            "classes": OwnClasses(client.label_counts or [1] * client.classes),
        }

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        return cast(Tensor, model.classes(super().predict(model, x, received)))

    def stages(self, now: Round) -> Sequence[Stage]:
        return [Stage(("extractor", "head"), self.loss, self.train.epochs)]

    def kept(self) -> set[str]:
        return {"head", "classes"}

    # --- messages

    def start(self, model: Model) -> State:
        return select(model.state_dict(), {"extractor"})

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        """θ, and W_k if the server has it."""
        rows = server.get(f"rows.{client.id}")
        return Message(select(server, {"extractor"}) | ({} if rows is None else {_ROWS: rows}))

    def heard(self, message: Message) -> State:
        return {}

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        received = select(message.tensors, {"extractor"})
        if _ROWS in message.tensors:
            places = own["classes.own"][:, None].expand_as(own["head.weight"])
            received["head.weight"] = own["head.weight"].masked_scatter(places, message.tensors[_ROWS])
        return received

    def reply(self, after: Trained, now: Round) -> Message:
        own = after.own["classes.own"].nonzero().squeeze(1)
        embeddings = {"embeddings.classes": own, _ROWS: after.own["head.weight"][own]}
        return Message(select(after.own, {"extractor"}) | embeddings, {"samples": after.client.samples})

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        server = server | weighted_mean(replies, {"extractor"})
        for reply in replies:
            server[f"rows.{reply.client}"] = reply.message.tensors[_ROWS]
            server[f"classes.{reply.client}"] = reply.message.tensors["embeddings.classes"].clone()
        return server | self._corrected(server)

    def _corrected(self, server: State) -> State:
        """W − λ·η·∇Reg(W), client by client."""
        known = sorted(name.removeprefix("rows.") for name in server if name.startswith("rows."))
        classes = [server[f"classes.{client}"] for client in known]
        embeddings = torch.cat([server[f"rows.{client}"] for client in known]).requires_grad_()
        clients = torch.cat([torch.full_like(own, number) for number, own in enumerate(classes)])
        [slope] = torch.autograd.grad(crowding(embeddings, torch.cat(classes), clients), embeddings)
        corrected = embeddings.detach() - self.options.correction * self.train.lr * slope
        each = torch.split(corrected, [len(own) for own in classes])
        return {f"rows.{client}": rows for client, rows in zip(known, each, strict=True)}


def crowding(embeddings: Tensor, classes: Tensor, clients: Tensor) -> Tensor:
    """Reg(W): high where embeddings are like those of a class that their client has not. A row each, of whom it is."""
    of_class, of_client = (F.one_hot(labels).to(embeddings) for labels in (classes, clients))
    sizes = of_class.sum(0)
    means = (of_class.T @ embeddings.detach()) / sizes.clamp(min=1)[:, None]
    has = (of_client.T @ of_class)[clients] > 0  # rows × classes: whether the row's client has the class
    others = (embeddings @ means.T).masked_fill(has, -torch.inf)
    own = means.square().sum(1)
    return ((torch.cat([own[None], others]).logsumexp(0) - own) * (sizes > 0)).sum()
