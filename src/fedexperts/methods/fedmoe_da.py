"""FedMoE-DA: a sparse mixture on every client; experts travel between clients whose gates are alike."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn
from torch.func import functional_call

from fedexperts.config import Frozen, NumbersInTurn, absolute
from fedexperts.errors import MethodError
from fedexperts.methods.base import Batch, Method, Model, Reply, Round, Stage, Trained, Want, weighted_mean
from fedexperts.methods.message import Message, Owner, State, inside, select
from fedexperts.methods.neighbours import Neighbours, matrix, rows, shares
from fedexperts.methods.saved import fitting, saved_part
from fedexperts.methods.teaching import Teachers, ask
from fedexperts.models import Parts, SparseExperts, cut, out_shape
from fedexperts.task import ClientSpec


class FedMoEDA(Method):
    """Parts: embedding Θ (the first convolution; of texts the mean embedding), gate Π (its rows are the experts'
    proxies π), experts Φ.

    ŷ = Σ G_j(z)·Φ_j(z) over the best-scored experts, z = Θ(x), G = softmax(zΠ) (Eq. 1-4). Θ is the clients' plain mean
    (Eq. 5). Every I rounds the gates go to the server, which makes A: cosine similarity r_ij of all proxies (Eq. 8),
    S_i the expert itself and the P most similar of all clients' (Eq. 9), a_ij = softmax of r_ij/τ over S_i (Eq. 10).
    After training each client fetches the experts that the last A names from their owners and mixes them into its own
    (Eq. 11). Before the first A there is nothing to fetch. Experts never pass the server.

    Where experts are to differ in shape (the paper's outlook, no more than a sentence), `mixing = distil`: the client
    asks what it has fetched about a batch of its own samples, and each of its experts begins the next round with
    learning Σ a_ij p_j, whatever the shapes are; nothing is averaged but Θ, whose shape all must have.
    """

    name = "fedmoe-da"
    title = "FedMoE-DA"
    source = "Zhan et al. 2024: FedMoE-DA: Federated Mixture of Experts via Domain Aware Fine-grained Aggregation"
    owners = {
        "embedding": Owner.SHARED,
        "gate": Owner.SHARED,  # the client's own, but a copy goes to the server
        "experts": Owner.PEER,
        "neighbours": Owner.PRIVATE,
    }

    class Options(Frozen):
        experts: NumbersInTurn = Field((4,), description="experts K of a client; several numbers go to clients in turn")
        top: int = Field(1, ge=1, description="experts that a sample uses")
        asked: int = Field(5, ge=0, description="experts P of others that each expert is mixed with")
        interval: int = Field(5, ge=1, description="rounds I between two aggregation matrices")
        temperature: float = Field(1.0, gt=0, description="τ: higher mixes more evenly")
        start: Literal["same", "own"] = Field(
            "same", description="whether gates and experts begin alike on all clients (the paper does not say)"
        )
        mixing: Literal["average", "distil"] = Field(
            "average", description="experts become the mean of those named (Eq. 11), or learn to answer as they do"
        )
        distil_temperature: float = Field(2.0, gt=0, description="distil: temperature at which answers are compared")
        distil_epochs: int = Field(1, ge=1, description="distil: epochs, at the start of a client's next round")
        embedding: Literal["fresh", "frozen", "tuned"] = Field(
            "fresh", description="new, or pre-trained and left as it is (and never sent), or pre-trained and trained on"
        )
        pretrained: Path | None = Field(
            None, description="folder of a finished FedAvg run with the same --model, for a pre-trained embedding"
        )

        _absolute = field_validator("pretrained")(absolute)

        @model_validator(mode="after")
        def _from_somewhere(self) -> Self:
            if (self.embedding == "fresh") != (self.pretrained is None):
                raise ValueError("an embedding that is frozen or tuned needs --pretrained RUN, a fresh one has none")
            return self

    options: Options

    def in_use(self) -> dict[str, Any]:
        return super().in_use() | {"embedding": "fresh"}

    # --- the model

    @property
    def experts(self) -> Sequence[str]:
        """Where all clients have as many; else there is no common name for them."""
        numbers = set(self.options.experts)
        return [f"expert {number}" for number in range(max(numbers))] if len(numbers) == 1 else ()

    def parts(self, client: ClientSpec) -> Parts:
        own = self.options.experts[client.id % len(self.options.experts)]
        if self.options.top > own:
            raise MethodError(f"{client.called} has {own} experts, but a sample uses top = {self.options.top}")
        embedding, expert = cut(client.model, client.shape, client.classes)
        if (folder := self.options.pretrained) is not None:
            saved = saved_part(folder, "extractor", "pretrained")
            embedding.load_state_dict(fitting(saved, embedding.state_dict(), folder, "pretrained"))
        shape = out_shape(embedding, client.shape)
        others = [cut(client.model, client.shape, client.classes)[1] for _ in range(own - 1)]
        neighbours = Neighbours(own, self.options.asked)
        if self._distils:
            samples = min(client.samples, self.revisits)
            neighbours = Teachers(own, self.options.asked, client.classes, samples, shape)
        return {
            "embedding": embedding,
            "gate": nn.Linear(math.prod(shape), own, bias=False),
            "experts": SparseExperts([expert, *others], client.classes),
            "neighbours": neighbours,
        }

    def stages(self, now: Round) -> Sequence[Stage]:
        moving = ("gate", "experts") if self._frozen else ("embedding", "gate", "experts")
        learning = [Stage(("experts",), self.disagreement, self.options.distil_epochs)]
        # A matrix after the first round, teachers asked after the second: the third is the first with a lesson.
        return learning * (self._distils and now.number > 2) + [Stage(moving, self.loss, self.train.epochs)]

    def disagreement(self, model: Model, batch: Batch, received: State) -> Tensor:
        """Between each expert and its neighbours, on the samples that those were asked about."""
        logits = [expert(model.neighbours.samples) for expert in model.experts.children()]
        return cast(Tensor, model.neighbours.disagreement(logits, self.options.distil_temperature))

    @property
    def revisits(self) -> int:
        return self.train.batch_size if self._distils else 0

    @property
    def note(self) -> str:
        asked = "fedmoe-da: what fetched experts say of a client's samples costs FLOPs that are not counted"
        return asked if self._distils else ""

    def alike(self) -> set[str]:
        """An expert that is asked may have any shape; gates are as wide as embeddings are."""
        return {"embedding"} if self._distils else super().alike()

    @property
    def _distils(self) -> bool:
        return self.options.mixing == "distil"

    @property
    def _frozen(self) -> bool:
        return self.options.embedding == "frozen"

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        return cast(Tensor, model.embedding(x).flatten(1))

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        return cast(Tensor, model.gate(self.represent(model, x, received)).softmax(1))

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        embedded = model.embedding(x)
        scores, chosen = model.gate(embedded.flatten(1)).softmax(1).topk(self.options.top, dim=1)
        return cast(Tensor, model.experts(embedded, chosen, scores))

    def same_start(self) -> bool:
        return self.options.start == "same"

    def kept(self) -> set[str]:
        """Also Θ_i for as long as a client needs it: for good if frozen, until peers are asked if it distils."""
        return set(self.owners) if self._frozen or self._distils else set(self.owners) - {"embedding"}

    # --- between a client and the server

    def start(self, model: Model) -> State:
        return self._travels(model.state_dict())

    def _travels(self, tensors: Mapping[str, Tensor]) -> State:
        """Θ, unless everybody has it for good."""
        return {} if self._frozen else select(tensors, {"embedding"})

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        """Θ, and the client's rows of A if it has not got them yet."""
        message = self._travels(server)
        if f"places.{client.id}" in server and f"told.{client.id}" not in server:
            message |= {f"rows.{kind}": server[f"{kind}.{client.id}"] for kind in ("places", "weights")}
        return Message(message)

    def heard(self, message: Message) -> State:
        return {}

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        return {name.replace("rows.", "neighbours."): tensor for name, tensor in message.tensors.items()}

    def finish(self, after: Trained, now: Round) -> State:
        return {"neighbours.due": torch.zeros_like(after.own["neighbours.due"])} if self._distils else {}

    def reply(self, after: Trained, now: Round) -> Message:
        gate = {"gate.weight": after.own["gate.weight"]} if self._renews(now) else {}
        return Message(self._travels(after.own) | gate, {"samples": after.client.samples})

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        told = {f"told.{reply.client}": torch.tensor(True) for reply in replies}  # these have their rows of A
        server = server | weighted_mean(replies, {"embedding"}, equal=True) | told
        if self._renews(now):
            server = {name: tensor for name, tensor in server.items() if not name.startswith("told.")}
            server |= {f"proxies.{reply.client}": reply.message.tensors["gate.weight"].clone() for reply in replies}
            known = {int(name.partition(".")[2]): server[name] for name in server if name.startswith("proxies.")}
            server |= matrix(dict(sorted(known.items())), self.options.asked, self.options.temperature)
        return server

    def _renews(self, now: Round) -> bool:
        return now.number % self.options.interval == 1 % self.options.interval

    # --- between clients

    def wants(self, after: Trained, now: Round) -> Sequence[Want]:
        return sorted({want for row in rows(after) for want in row if want.peer != after.client.id})

    def adopt(self, after: Trained, fetched: Mapping[Want, Message], now: Round) -> State:
        """Mix the own experts with those that could be fetched."""
        found = rows(after)
        if not found:
            return {}
        own = [Want(after.client.id, f"experts.{number}") for number in range(len(found))]
        served = {want: self.serve(after.own, want) for want in own} | dict(fetched)
        at_hand = {want: inside(message.tensors, want.what) for want, message in served.items()}
        weights = shares(found, at_hand)
        return self._asked(after, at_hand, weights) if self._distils else _averaged(at_hand, weights)

    def _asked(self, after: Trained, at_hand: Mapping[Want, State], weights: Tensor) -> State:
        """What all experts at hand say of some of the client's samples, to be learnt when it next trains."""
        with torch.device("meta"):
            embedding = cut(after.client.model, after.client.shape, after.client.classes)[0].eval()
        tensors = {name: after.own[f"embedding.{name}"] for name in embedding.state_dict()}
        with torch.no_grad():
            embedded: Tensor = functional_call(embedding, tensors, after.x)
        said = ask(list(at_hand.values()), embedded, self.options.distil_temperature, after.client)
        return {
            "neighbours.samples": embedded,
            "neighbours.answers": torch.tensordot(weights.to(said), said, dims=1),
            "neighbours.due": torch.ones_like(after.own["neighbours.due"]),
        }


def _averaged(at_hand: Mapping[Want, State], weights: Tensor) -> State:
    """Φ_i = Σ a_ij Φ_j (Eq. 11), of whole numbers (BatchNorm's counters) the largest; the client's own come first."""
    adopted: State = {}
    first = next(iter(at_hand.values()))
    weights = weights.to(next(tensor for tensor in first.values() if tensor.is_floating_point()))
    for layer in first:
        experts = torch.stack([tensors[layer] for tensors in at_hand.values()])
        if experts.is_floating_point():
            mixed = torch.tensordot(weights, experts, dims=1)
        else:
            mixed = experts.amax(0).expand(len(weights), *experts.shape[1:])
        adopted |= {f"experts.{number}.{layer}": mixed[number] for number in range(len(weights))}
    return adopted
