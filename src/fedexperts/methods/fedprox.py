"""FedProx: FedAvg whose clients are held near the model that they got."""

from pydantic import Field
from torch import Tensor

from fedexperts.config import Frozen
from fedexperts.methods.base import Batch, Method, Model
from fedexperts.methods.message import State


class FedProx(Method):
    """h_k(w) = F_k(w) + μ/2·‖w − w_global‖² (Eq. 2), w_global as the server sent it this round.

    Every client trains all its epochs: the paper's other half, stragglers that do less, is a matter of who takes part.
    """

    name = "fedprox"
    title = "FedProx"
    source = "Li et al. 2020: Federated Optimization in Heterogeneous Networks, MLSys"

    class Options(Frozen):
        mu: float = Field(0.01, ge=0, description="weight μ of the proximal term (the paper tries 0.001, 0.01, 0.1, 1)")

    options: Options

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        distance = sum((own - received[name]).square().sum() for name, own in model.named_parameters())
        return super().loss(model, batch, received) + self.options.mu / 2 * distance
