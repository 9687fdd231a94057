"""SCAFFOLD: every client's gradient is corrected by how it usually differs from everyone's."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from fedexperts.config import Frozen, TrainSettings
from fedexperts.errors import SettingsError
from fedexperts.methods.base import Batch, Method, Model, Reply, Round, Stage, Trained, weighted_mean
from fedexperts.methods.message import Message, Owner, State, part_of, select
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

MODEL = ("extractor", "head")


class Variate(nn.ModuleDict):
    """A number for each parameter of a model, under the same names; it begins as zero."""

    def __init__(self, model: Parts) -> None:
        super().__init__(copy.deepcopy(model))
        for module in self.modules():
            for name, _ in list(module.named_buffers(recurse=False)):
                delattr(module, name)
        for parameter in self.parameters():
            parameter.data.zero_()


class Scaffold(Method):
    """y ← y − η_l·(g_i(y) − c_i + c) (Eq. 3): the server's variate c less the client's own, c_i.

    The correction is the gradient of the linear term ⟨c − c_i, y − x⟩, so it is a part of the loss and the optimiser
    needs no hook. After K steps c_i⁺ = c_i − c + (x − y)/(K·η_l) (Eq. 4, option II). The server takes plain means over
    the sampled S: x ← x + η_g·mean(Δy), c ← c + |S|/N·mean(Δc) (Eq. 5), so c is always the mean of all clients' c_i.

    A client sends y in place of Δy = y − x, which is the same to a server that knows x. It keeps c_i, but c_i is no
    secret of it: who adds up its Δc has it. Hence the part is `shared`.

    (x − y)/(K·η_l) is the mean of the client's gradients only where steps are plain SGD's; weight decay is a part of
    the gradient and does no harm, momentum and Adam are refused.
    """

    name = "scaffold"
    title = "SCAFFOLD"
    source = "Karimireddy et al. 2020: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML"
    owners = {"extractor": Owner.SHARED, "head": Owner.SHARED, "variate": Owner.SHARED}

    class Options(Frozen):
        global_rate: float = Field(1.0, gt=0, description="the server's step η_g towards the clients' mean")

    options: Options

    def __init__(self, train: TrainSettings | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(train, options)
        if self.train.optimizer != "sgd" or self.train.momentum:
            used = "Adam" if self.train.optimizer == "adam" else f"momentum {self.train.momentum:g}"
            raise SettingsError(
                f"scaffold reads a client's mean gradient from how far plain SGD went, which {used} does not show; "
                "use --optimizer sgd --momentum 0"
            )

    def parts(self, client: ClientSpec) -> Parts:
        model = super().parts(client)
        return {**model, "variate": Variate(model)}

    def stages(self, now: Round) -> Sequence[Stage]:
        return [Stage(MODEL, self.loss, self.train.epochs)]

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        own = dict(model.named_parameters())
        correction = sum(
            ((received[variate] - own[variate]) * (own[name] - received[name])).sum()
            for name, variate in ((name, f"variate.{name}") for name in own if part_of(name) in MODEL)
        )
        return super().loss(model, batch, received) + correction

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        return select(message.tensors, set(MODEL))

    def finish(self, after: Trained, now: Round) -> State:
        return {name: after.own[name] + change for name, change in self._changes(after).items()}

    def reply(self, after: Trained, now: Round) -> Message:
        return Message({**select(after.own, set(MODEL)), **self._changes(after)})

    @property
    def differences(self) -> set[str]:
        return {"variate"}

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        mean, turnout = weighted_mean(replies, equal=True), len(replies) / now.clients

        def following(name: str, old: Tensor) -> Tensor:
            if part_of(name) == "variate":
                return old + turnout * mean[name]
            if f"variate.{name}" in server:
                return old + self.options.global_rate * (mean[name] - old)
            return mean[name]  # a buffer, which no gradient moves

        return {name: following(name, old) for name, old in server.items()}

    def kept(self) -> set[str]:
        return {"variate"}

    def steps(self, client: ClientSpec) -> int:
        """K: a client's steps in a round; a last batch that is not full is filled up, and so is a step."""
        return self.train.epochs * math.ceil(client.samples / self.train.batch_size)

    def _changes(self, after: Trained) -> State:
        """Δc = c_i⁺ − c_i, from what the client got and where it went."""
        way = self.steps(after.client) * self.train.lr
        return {
            f"variate.{name}": (x - after.own[name]) / way - after.received[f"variate.{name}"]
            for name, x in after.received.items()
            if f"variate.{name}" in after.received
        }
