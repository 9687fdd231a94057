"""What methods share whose experts are whole models that a gate mixes, and whose server holds all of them."""

from collections.abc import Callable, Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, ByClass, Method, Model, Reply, weighted_mean
from fedexperts.methods.message import Message, State, inside
from fedexperts.models import Classifier
from fedexperts.task import ClientSpec


class Mixture(Method):
    """p(y|x) = Σ_k g_k(x)·p_k(y|x), all in logarithms; the part `experts` is a list of models."""

    class Options(Frozen):
        experts: int = Field(4, ge=2, description="experts K that the server holds")

    options: Options

    @property
    def experts(self) -> Sequence[str]:
        return [f"no. {expert}" for expert in range(self.options.experts)]

    def log_weights(self, model: Model, x: Tensor, received: State) -> Tensor:
        """The logarithms of g: samples × the client's experts; −∞ for an expert that does not count."""
        raise NotImplementedError

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.log_weights(model, x, received).softmax(1)

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        """The experts' features, mixed as their answers are."""
        features = torch.stack([expert.extractor(x) for expert in model.experts], dim=1)
        return (self.log_weights(model, x, received).softmax(1)[:, :, None] * features).sum(1)

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        return mixed(self.log_weights(model, x, received), model, x)

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        """The likelihood itself: where only some experts count, their weights do not sum to 1, and the gate learns."""
        return F.nll_loss(self.predict(model, batch.x, received), batch.y)


def alike(client: ClientSpec, count: int) -> nn.ModuleList:
    """So many experts, each a model of the client's own kind."""
    return nn.ModuleList(Classifier(client.model, client.shape, client.classes) for _ in range(count))


def mixed(log_weights: Tensor, model: Model, x: Tensor) -> Tensor:
    """The logarithms of the mixed probabilities: logits as good as any."""
    answers = torch.stack([expert(x).log_softmax(1) for expert in model.experts], dim=1)
    return (log_weights[:, :, None] + answers).logsumexp(1)


def mean_use(by_class: ByClass) -> Tensor:
    """The mean weight of each expert over a client's training data, where `collect` gives the samples' weights."""
    return by_class.counts @ by_class.means / by_class.counts.sum()


def one(tensors: Mapping[str, Tensor], expert: int, renamed: int | None = None) -> State:
    """The tensors of one expert, under its own number or another."""
    new = f"experts.{expert if renamed is None else renamed}"
    return {f"{new}.{name}": tensor for name, tensor in inside(tensors, f"experts.{expert}").items()}


def mean_of_each(server: State, replies: Sequence[Reply], count: int, weight: Callable[[Reply, int], float]) -> State:
    """The server's experts, each the mean over the clients that sent it; one that nobody sent stays as it is."""
    state = dict(server)
    for expert in range(count):
        own = [
            Reply(reply.client, Message(sent, {"samples": weight(reply, expert)}))
            for reply in replies
            if (sent := one(reply.message.tensors, expert))
        ]
        if own:
            state |= weighted_mean(own)
    return state
