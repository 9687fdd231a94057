"""FedALA: before it trains, every client learns how much of the global model to take, element by element."""

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model, Round, Stage, Trained
from fedexperts.methods.message import Message, Owner, State, part_of
from fedexperts.methods.replaced import called_with, key
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

MODEL = ("extractor", "head")


class FedALA(Method):
    """Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ [1; W_i^p]: the last p layers are mixed of the client's own and everyone's, the rest is
    everyone's. W_i^p ← clip(W_i^p − η·∇L(Θ̂_i), [0, 1]) on a share s of the data, then the client trains from Θ̂_i.

    W_i begins as ones and stays with the client. In the first round there is nothing to mix. In the second it is
    trained for more epochs, where the paper goes on until the loss is steady, and then for one epoch a round; a client
    that comes later begins with one. The share s is another one in every round, at the same place for all clients.

    What moves in training is Θ_i, under weights Θ_i + (Θ − Θ_i before training) ⊙ W_i: the same steps as from Θ̂_i, but
    that weight decay pulls at Θ_i. Steps of W_i are plain SGD's; the clipping is a part of their loss, whose gradient
    takes a weight beyond [0, 1] back to the border. A client is evaluated with Θ̂_i by the W_i that it has: it learns a
    new one only in its next round.
    """

    name = "fedala"
    title = "FedALA"
    source = "Zhang et al. 2023: FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI"
    owners = {
        "extractor": Owner.SHARED,
        "head": Owner.SHARED,
        "previous": Owner.PRIVATE,  # Θ_i of the last layers, as it was when the round began
        "mixing": Owner.PRIVATE,  # W_i
    }

    class Options(Frozen):
        layers: int = Field(1, ge=1, description="how many of the last layers p are mixed")
        mixing_share: float = Field(0.8, gt=0, le=1, description="share s of the client's data that W_i is learned on")
        mixing_lr: float = Field(1.0, gt=0, description="learning rate η of W_i, with plain SGD")
        mixing_epochs: int = Field(1, ge=1, description="epochs for W_i at the start of a round")
        first_epochs: int = Field(10, ge=1, description="the same in round 2, the first with something to mix")

    options: Options

    # --- the model

    def parts(self, client: ClientSpec) -> Parts:
        model = super().parts(client)
        layers = [
            (f"{part}.{name}".rstrip("."), list(layer.named_parameters(recurse=False)))
            for part in MODEL
            for name, layer in model[part].named_modules()
        ]
        last = [layer for layer in layers if layer[1]][-self.options.layers :]
        mixed = {key(f"{place}.{name}"): tensor.detach() for place, own in last for name, tensor in own}
        return {
            **model,
            "previous": nn.ParameterDict({name: tensor.clone() for name, tensor in mixed.items()}),
            "mixing": nn.ParameterDict({name: torch.ones_like(tensor) for name, tensor in mixed.items()}),
        }

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        return called_with(model, "extractor", _mixed(dict(model.named_parameters()), received), x)

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        features = self.represent(model, x, received)
        return called_with(model, "head", _mixed(dict(model.named_parameters()), received), features)

    def stages(self, now: Round) -> Sequence[Stage]:
        training = Stage(MODEL, self.loss, self.train.epochs)
        if now.number == 1:
            return [training]
        options = self.options
        epochs = options.first_epochs if now.number == 2 else options.mixing_epochs
        begin = now.stream("mixing").random() * (1 - options.mixing_share)
        share, rates = (begin, begin + options.mixing_share), {"mixing": options.mixing_lr}
        return [Stage(("mixing",), self.mixing_loss, epochs, rates, share, plain=True), training]

    def mixing_loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        """A step by this loss begins at the border for every weight that the last one took beyond it."""
        loss = self.loss(model, batch, received)
        for weight in model.mixing.values():
            loss = loss + (weight - weight.detach().clamp(0, 1)).square().sum() / (2 * self.options.mixing_lr)
        return loss

    # --- between rounds

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        """Everyone's lower layers; the client's own last ones are its previous."""
        mixed = set(_names(own))
        lower = {name: tensor for name, tensor in message.tensors.items() if name not in mixed}
        return lower | {f"previous.{key(name)}": own[name] for name in mixed}

    def finish(self, after: Trained, now: Round) -> State:
        mixing = {name: tensor.clamp(0, 1) for name, tensor in after.own.items() if part_of(name) == "mixing"}
        return _mixed(after.own, after.received) | mixing

    def personalise(self, own: Mapping[str, Tensor], message: Message) -> State:
        """Θ̂_i; beside it, everyone's layers are the previous ones, so that they are not mixed in twice."""
        ready = self.receive(own, message)
        mixed = _mixed({**own, **ready}, message.tensors)
        return ready | mixed | {f"previous.{key(name)}": message.tensors[name] for name in mixed}

    def kept(self) -> set[str]:
        return {"head", "mixing"} if self.options.layers == 1 else {*MODEL, "mixing"}

    def same_start(self) -> bool:
        return True


def _names(own: Mapping[str, Tensor]) -> list[str]:
    """The tensors that are mixed."""
    return [name for name in own if f"mixing.{key(name)}" in own]


def _mixed(own: Mapping[str, Tensor], everyones: Mapping[str, Tensor]) -> State:
    """Θ_i + (Θ − Θ_i before training) ⊙ W_i, with W_i in [0, 1]; its gradient is as if nothing were clipped."""
    found = {}
    for name in _names(own):
        weight = own[f"mixing.{key(name)}"]
        clipped = weight + (weight.clamp(0, 1) - weight).detach()
        found[name] = own[name] + (everyones[name] - own[f"previous.{key(name)}"]) * clipped
    return found
