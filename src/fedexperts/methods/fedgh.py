"""FedGH: every client has an extractor of its own; the server trains one head for all on the classes' mean features."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.at_server import in_batches, shuffled
from fedexperts.methods.base import Method, Model, Reply, Round, Trained
from fedexperts.methods.classwise import rows_of_own_classes
from fedexperts.methods.message import Message, Owner, State


class FedGH(Method):
    """Up go the mean features R̄_k^s of the client's classes s; the server trains the header θ by CE(H(R̄_k^s; θ), s).

    θ goes down and takes the place of the client's own header; extractor and header are then trained together. The
    extractors may differ, if all end in the same width.

    As printed, θ makes a step for each mean that has come. Their order is random here, so that no client always has the
    last word. In the authors' code the optimiser of these steps holds a client's model, and θ stays as it was drawn.
    """

    name = "fedgh"
    title = "FedGH"
    source = "Yi et al. 2023: FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM MM"
    owners = {"extractor": Owner.PRIVATE, "head": Owner.SHARED}
    personal = "extractor"

    class Options(Frozen):
        server_lr: float | None = Field(None, gt=0, description="the server's learning rate η_θ (default: --lr)")
        server_epochs: int = Field(1, ge=1, description="how often the server goes through a round's means")
        server_batch: int = Field(1, ge=1, description="means in a step of the server")

    options: Options

    def collect(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.represent(model, x, received)

    def reply(self, after: Trained, now: Round) -> Message:
        return rows_of_own_classes(after.by_class, "features")

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        means = torch.cat([reply.message.tensors["features.means"] for reply in replies])
        classes = torch.cat([reply.message.tensors["features.classes"] for reply in replies])
        # The bias as the weight of a feature that is always 1; and the steps written out, of which there are hundreds.
        features, wanted = F.pad(means, (0, 1), value=1), F.one_hot(classes, len(server["head.bias"])).to(means)
        head = torch.cat([server["head.weight"].T, server["head.bias"][None]])
        rate, options = self.options.server_lr or self.train.lr, self.options

        def learn(x: Tensor, y: Tensor) -> None:
            error = (x @ head).softmax(1) - y  # what the cross entropy's gradient is in the logits
            head.addmm_(x.T, error, alpha=-rate / len(x))

        order = shuffled(len(features), options.server_epochs, now.stream("head"), features.device)
        in_batches(learn, (features, wanted), order, options.server_batch)
        return {"head.weight": head[:-1].T.contiguous(), "head.bias": head[-1].clone()}
