"""Fed-Syn-MoE: a gate between a global and a local model, all three trained together from the start."""

from torch import Tensor

from fedexperts.methods.base import Model
from fedexperts.methods.message import State
from fedexperts.methods.pfl_moe import GlobalAndLocal
from fedexperts.models import DeepGate, Parts, flat
from fedexperts.task import ClientSpec


class FedSynMoE(GlobalAndLocal):
    """PFL-MoE's mixture of outputs, without its three stages: one loss, on ŷ, trains both models and the gate at once.

    It sees all of the client's data, and the local model stays the client's own: it never begins again as the global
    one. PM-MoE's paper (Section 4.3) says no more of it than that a gate balances both models and is trained in step
    with them. Taken here: the paper's own gate, on the flat input. Its public code mixes features, under a head that
    stays with the client, and makes the gate anew in every round.
    """

    name = "fed-syn-moe"
    title = "Fed-Syn-MoE"
    source = (
        "Feng et al. 2025: PM-MoE: Mixture of Experts on Private Model Parameters for Personalized Federated Learning, "
        "WWW, Table 4"
    )

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        return super().weigh(model, x, received).softmax(1)

    def parts(self, client: ClientSpec) -> Parts:
        models, (reads, inputs) = super().parts(client), flat(client.shape)
        return models | {"gate": DeepGate(inputs, len(self.experts), reads=reads)}
