"""FedDecomp: every weight is the sum of one that all share and one of low rank that is the client's own."""

import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fedexperts.config import Frozen
from fedexperts.methods.base import Method, Model, Round, Stage
from fedexperts.methods.message import Owner, State, part_of
from fedexperts.methods.replaced import called_with, key
from fedexperts.models import Parts
from fedexperts.task import ClientSpec

MODEL = ("extractor", "head")


class LowRank(nn.Module):
    """τ = B·A/r in the shape of a weight. B begins as zero, and so does τ.

    A convolution's filters × channels × height × width are a matrix of (filters·height) × (channels·width).
    """

    def __init__(self, shape: Sequence[int], ratio: float) -> None:
        super().__init__()
        self.outputs, self.inputs, *self.kernel = shape
        height, width = self.kernel or (1, 1)
        rows, columns = self.outputs * height, self.inputs * width
        self.rank = max(1, int(ratio * min(rows, columns)))
        self.a = nn.Parameter(torch.empty(self.rank, columns))
        self.b = nn.Parameter(torch.zeros(rows, self.rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))  # as torch draws a linear layer's weights

    def forward(self) -> Tensor:
        product = self.b @ self.a / self.rank
        if not self.kernel:
            return product
        height, width = self.kernel
        return product.reshape(self.outputs, height, self.inputs, width).permute(0, 2, 1, 3)


class FedDecomp(Method):
    """θ_i = σ + τ_i for every weight matrix, of convolutions too: σ of full rank is averaged by samples, τ_i = B_i·A_i
    of low rank never leaves the client. Biases and the like have no τ. A round trains τ_i first, with σ fixed, so that
    it takes up what is the client's own, and then σ, with τ_i fixed.

    The rank is a ratio of the full one, R_c for convolutions and R_l for all others, embeddings of words included. As
    in the authors' code are the ratios (0.8, and 40 of 100 for the classifier), the division of B·A by the rank, the
    beginning of A and B, and two epochs for τ_i; there they are two of five, here they come before those of --epochs.
    """

    name = "feddecomp"
    title = "FedDecomp"
    source = (
        "Wu et al. 2024: Decoupling General and Personalized Knowledge in Federated Learning via Additive and Low-Rank "
        "Decomposition, ACM MM"
    )
    owners = {"extractor": Owner.SHARED, "head": Owner.SHARED, "low_rank": Owner.PRIVATE}

    class Options(Frozen):
        conv_rank: float = Field(0.8, gt=0, le=1, description="rank R_c of τ in convolutions, of the full rank")
        linear_rank: float = Field(0.4, gt=0, le=1, description="rank R_l of τ in all other layers, of the full rank")
        low_rank_epochs: int = Field(2, ge=1, description="epochs for τ at the start of a round")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        model = super().parts(client)
        weights = {f"{part}.{name}": weight for part in MODEL for name, weight in model[part].named_parameters()}
        low_rank = {
            key(name): LowRank(weight.shape, self.options.conv_rank if weight.dim() == 4 else self.options.linear_rank)
            for name, weight in weights.items()
            if weight.dim() > 1
        }
        return {**model, "low_rank": nn.ModuleDict(low_rank)}

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        return called_with(model, "extractor", _sums(model, "extractor"), x)

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        return called_with(model, "head", _sums(model, "head"), self.represent(model, x, received))

    def stages(self, now: Round) -> Sequence[Stage]:
        return [
            Stage(("low_rank",), self.loss, self.options.low_rank_epochs),
            Stage(MODEL, self.loss, self.train.epochs),
        ]


def _sums(model: Model, part: str) -> State:
    """σ + τ of one part's weights."""
    return {
        name: weight + model.low_rank[key(name)]()
        for name, weight in model.named_parameters()
        if part_of(name) == part and key(name) in model.low_rank
    }
