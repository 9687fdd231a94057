"""FedMoE-DA: a sparse mixture on every client; experts travel between clients whose gates are alike."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self, cast

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen, NumbersInTurn, absolute
from fedexperts.errors import MethodError
from fedexperts.methods.base import Method, Model, Reply, Round, Stage, Trained, Want, weighted_mean
from fedexperts.methods.message import Message, Owner, State, select
from fedexperts.methods.saved import fitting, saved_part
from fedexperts.models import Parts, SparseExperts, blank, build
from fedexperts.task import ClientSpec


class Neighbours(nn.Module):
    """The client's rows of A: S_i of each of its experts as (client, expert), and a_ij; weight 0 is nobody."""

    def __init__(self, experts: int, asked: int) -> None:
        super().__init__()
        self.register_buffer("places", torch.zeros(experts, asked + 1, 2, dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(experts, asked + 1))


class FedMoEDA(Method):
    """Parts: embedding Θ (the first convolution; of texts the mean embedding), gate Π (its rows are the experts'
    proxies π), experts Φ.

    ŷ = Σ G_j(z)·Φ_j(z) over the best-scored experts, z = Θ(x), G = softmax(zΠ) (Eq. 1-4). Θ is the clients' plain mean
    (Eq. 5). Every I rounds the gates go to the server, which makes A: cosine similarity r_ij of all proxies (Eq. 8),
    S_i the expert itself and the P most similar of all clients' (Eq. 9), a_ij = softmax of r_ij/τ over S_i (Eq. 10).
    After training each client fetches the experts that the last A names from their owners and mixes them into its own
    (Eq. 11). Before the first A there is nothing to fetch. Experts never pass the server.
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

    # --- the model

    @property
    def experts(self) -> Sequence[str]:
        """Where all clients have as many; else there is no common name for them."""
        numbers = set(self.options.experts)
        return [f"expert {number}" for number in range(max(numbers))] if len(numbers) == 1 else ()

    def parts(self, client: ClientSpec) -> Parts:
        own = self.options.experts[client.id % len(self.options.experts)]
        if self.options.top > own:
            raise MethodError(f"client {client.id} has {own} experts, but a sample uses top = {self.options.top}")
        embedding, expert = _cut(client)
        if (folder := self.options.pretrained) is not None:
            saved = saved_part(folder, "extractor", "pretrained")
            embedding.load_state_dict(fitting(saved, embedding.state_dict(), folder, "pretrained"))
        width = embedding(blank(client.shape)).numel()
        return {
            "embedding": embedding,
            "gate": nn.Linear(width, own, bias=False),
            "experts": SparseExperts([expert, *(_cut(client)[1] for _ in range(own - 1))], client.classes),
            "neighbours": Neighbours(own, self.options.asked),
        }

    def stages(self, now: Round) -> Sequence[Stage]:
        moving = ("gate", "experts") if self._frozen else ("embedding", "gate", "experts")
        return [Stage(moving, self.loss, self.train.epochs)]

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
        return set(self.owners) if self._frozen else set(self.owners) - {"embedding"}

    # --- between a client and the server

    def start(self, model: Model) -> State:
        return self._travels(model.state_dict()) | {"matrix.round": torch.tensor(0)}

    def _travels(self, tensors: Mapping[str, Tensor]) -> State:
        """Θ, unless everybody has it for good."""
        return {} if self._frozen else select(tensors, {"embedding"})

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        """Θ, and the client's rows of A if it has not got them yet."""
        message = self._travels(server)
        last, seen = server["matrix.round"], server.get(f"seen.{client.id}")
        if f"places.{client.id}" in server and (seen is None or seen < last):
            message |= {f"rows.{kind}": server[f"{kind}.{client.id}"] for kind in ("places", "weights")}
        return Message(message)

    def heard(self, message: Message) -> State:
        return {}

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        return {name.replace("rows.", "neighbours."): tensor for name, tensor in message.tensors.items()}

    def reply(self, after: Trained, now: Round) -> Message:
        gate = {"gate.weight": after.own["gate.weight"]} if self._renews(now) else {}
        return Message(self._travels(after.own) | gate, {"samples": after.client.samples})

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        seen = {f"seen.{reply.client}": server["matrix.round"] for reply in replies}
        server = server | weighted_mean(replies, {"embedding"}, equal=True) | seen
        if self._renews(now):
            server |= {f"proxies.{reply.client}": reply.message.tensors["gate.weight"] for reply in replies}
            server |= self._matrix(server) | {"matrix.round": torch.full_like(server["matrix.round"], now.number)}
        return server

    def _renews(self, now: Round) -> bool:
        return now.number % self.options.interval == 1 % self.options.interval

    def _matrix(self, server: State) -> State:
        """Each client's rows of A (Eq. 8-10), from the proxies that the server knows."""
        clients = sorted(int(name.partition(".")[2]) for name in server if name.startswith("proxies."))
        proxies = [server[f"proxies.{client}"] for client in clients]
        counts = [len(own) for own in proxies]
        of_all = torch.cat(proxies)
        every = torch.tensor(
            [(client, expert) for client, count in zip(clients, counts, strict=True) for expert in range(count)]
        ).to(of_all.device)
        directions = F.normalize(of_all, dim=1)
        similarity = (directions @ directions.T).fill_diagonal_(torch.inf)  # an expert is its own nearest, always
        nearest = min(self.options.asked + 1, len(of_all))
        chosen = similarity.topk(nearest, dim=1).indices
        weights = (similarity.fill_diagonal_(1).gather(1, chosen) / self.options.temperature).softmax(1)
        missing = self.options.asked + 1 - nearest
        places, weights = F.pad(every[chosen], (0, 0, 0, missing)), F.pad(weights, (0, missing))
        mine = every[:, 0]
        rows = {f"places.{client}": places[mine == client] for client in clients}
        return rows | {f"weights.{client}": weights[mine == client] for client in clients}

    # --- between clients

    def wants(self, after: Trained, now: Round) -> Sequence[Want]:
        return sorted({want for row in _rows(after) for want in row if want.peer != after.client.id})

    def adopt(self, after: Trained, fetched: Mapping[Want, Message], now: Round) -> State:
        """Φ_i = Σ a_ij Φ_j (Eq. 11); what could not be fetched leaves its weight to the others."""
        rows = _rows(after)
        own = [Want(after.client.id, f"experts.{number}") for number in range(len(rows))]
        at_hand = {want: self.serve(after.own, want) for want in own} | dict(fetched)
        if not rows:
            return {}
        weights = torch.tensor([[row.get(want, 0.0) for want in at_hand] for row in rows], dtype=torch.float64)
        weights /= weights.sum(1, keepdim=True)
        adopted: State = {}
        for layer in (name.removeprefix(own[0].what) for name in at_hand[own[0]].tensors):
            experts = torch.stack([message.tensors[want.what + layer] for want, message in at_hand.items()])
            mixed = torch.tensordot(weights.to(experts), experts, dims=1)
            adopted |= {mine.what + layer: mixed[number] for number, mine in enumerate(own)}
        return adopted


def _rows(after: Trained) -> list[dict[Want, float]]:
    """For each of the client's experts: whose experts it is mixed of, and a_ij; empty before the first matrix."""
    places, weights = after.own["neighbours.places"].tolist(), after.own["neighbours.weights"].tolist()
    rows = [
        {Want(peer, f"experts.{expert}"): weight for (peer, expert), weight in zip(row, own, strict=True) if weight > 0}
        for row, own in zip(places, weights, strict=True)
    ]
    return rows if any(rows) else []


def _cut(client: ClientSpec) -> tuple[nn.Sequential, nn.Sequential]:
    """A fresh model of the client's architecture: its embedding, and all that follows it, to the logits."""
    parts = build(client.model, client.shape, client.classes)
    layers = list(parts["extractor"].named_children())
    end = next(i for i, (name, _) in enumerate(layers) if name in ("relu1", "words")) + 1
    return nn.Sequential(OrderedDict(layers[:end])), nn.Sequential(
        OrderedDict([*layers[end:], ("head", parts["head"])])
    )
