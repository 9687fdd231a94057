"""FedMix: a shared pool of experts; each client's own gate says which of them it uses, and it trains only those."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fedexperts.methods.base import Model, Reply, Round, Stage, Trained
from fedexperts.methods.message import Message, Owner, State
from fedexperts.methods.mixture import Mixture, alike, mean_of_each, mean_use, one
from fedexperts.models import Parts, flat, strongest
from fedexperts.task import ClientSpec

_KEPT, _USE = "choice.kept", "use.mean"


class Choice(nn.Module):
    """Which experts the client keeps: 1, or 0 for one that it has dropped. At first it has all."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(experts))


class FedMix(Mixture):
    """p(y|x) = Σ_k g_k(x)·p_k(y|x), the private gate g one linear layer on the image and a softmax.

    After its training a client drops the experts that its gate hardly uses on its own data, for good; it trains and
    sends those it keeps. w_k = Σ_s n_s·ḡ_sk·w_sk / Σ_s n_s·ḡ_sk over the clients s that keep k, ḡ_sk the gate's mean.

    Taken here, as no code was found: the bound below which an expert is dropped, and the gate's mean (no posterior)
    as a client's weight. All experts come down in every round, so that clients can be stacked; up go those kept.
    """

    name = "fedmix"
    title = "FedMix"
    source = "Reisser et al. 2021: Federated Mixture of Experts"
    owners = {"experts": Owner.SHARED, "gate": Owner.PRIVATE, "choice": Owner.PRIVATE}

    class Options(Mixture.Options):
        least_use: float = Field(
            0.2, ge=0, lt=1, description="a client drops an expert that it uses less than this part of an even 1/K"
        )
        active: int | None = Field(
            None, ge=1, description="best-scored experts that answer for a sample, by their scores (default: all)"
        )

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        count, (reads, inputs) = self.options.experts, flat(client.shape)
        return {
            "experts": alike(client, count),
            "gate": nn.Sequential(reads, nn.Linear(inputs, count)),
            "choice": Choice(count),
        }

    def log_weights(self, model: Model, x: Tensor, received: State) -> Tensor:
        weights = torch.where(model.choice.kept > 0, model.gate(x), -torch.inf).log_softmax(1)
        active = self.options.active or self.options.experts
        return strongest(weights, min(active, self.options.experts), rest=-torch.inf)

    def stages(self, now: Round) -> Sequence[Stage]:
        return [Stage(("experts", "gate"), self.loss, self.train.epochs)]

    def collect(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.weigh(model, x, received)

    def finish(self, after: Trained, now: Round) -> State:
        """Drop what is hardly used; what was dropped has no use at all, and what is used most has at least 1/K."""
        use = mean_use(after.by_class)
        return {_KEPT: ((use > 0) & (use >= self.options.least_use / len(use))).to(use)}

    def reply(self, after: Trained, now: Round) -> Message:
        kept = [expert for expert, keeps in enumerate(after.own[_KEPT].tolist()) if keeps]
        own = {name: tensor for expert in kept for name, tensor in one(after.own, expert).items()}
        return Message(own | {_USE: mean_use(after.by_class)}, {"samples": after.client.samples})

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        uses = {reply.client: reply.message.tensors[_USE].tolist() for reply in replies}

        def samples(reply: Reply, expert: int) -> float:
            """How many of the client's samples are the expert's."""
            return float(reply.message.numbers["samples"] * uses[reply.client][expert])

        return mean_of_each(server, replies, self.options.experts, samples)
