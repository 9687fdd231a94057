"""Gates: FedMoE's, with the switchable normalisation that it begins with, and PM-MoE's."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

GateNorms = Literal["printed", "inner", "none"]


class SwitchNorm(nn.Module):
    """Switchable normalisation (Luo et al. 2019) of flat vectors.

    On a vector the method's instance statistics are those of the layer, so two remain: of the sample (layer) and of
    the batch, each mixed by learned softmax weights, one pair for the means and one for the variances. Evaluation
    uses running batch statistics.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.mean_mix = nn.Parameter(torch.zeros(2))
        self.var_mix = nn.Parameter(torch.zeros(2))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        layer_var, layer_mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
        if self.training:
            batch_var, batch_mean = torch.var_mean(x, dim=0, correction=0)
            unbiased = batch_var.detach() * (len(x) / max(len(x) - 1, 1))
            self.running_mean.mul_(1 - self.momentum).add_(self.momentum * batch_mean.detach())
            self.running_var.mul_(1 - self.momentum).add_(self.momentum * unbiased)
        else:
            batch_var, batch_mean = self.running_var, self.running_mean
        of_mean, of_var = self.mean_mix.softmax(0), self.var_mix.softmax(0)
        mean = of_mean[0] * layer_mean + of_mean[1] * batch_mean
        var = of_var[0] * layer_var + of_var[1] * batch_var
        return (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias


class Gate(nn.Sequential):
    """A sample's weights for the experts, summing to 1 (FedMoE, Section 4.3 and Figure 3).

    flatten → switchable normalisation → Linear(d, m) → BatchNorm → Sigmoid → Linear(m, experts) → BatchNorm → Softmax.
    `norms`: all three as printed; only the inner two, so that nothing forces the scores apart; or none. What `reads`
    the input, if given, stands in the place of flattening.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        experts: int = 2,
        norms: GateNorms = "printed",
        reads: nn.Module | None = None,
    ) -> None:
        inner, last = norms != "none", norms == "printed"
        super().__init__(
            nn.Flatten() if reads is None else reads,
            SwitchNorm(inputs) if inner else nn.Identity(),
            nn.Linear(inputs, width),
            nn.BatchNorm1d(width) if inner else nn.Identity(),
            nn.Sigmoid(),
            nn.Linear(width, experts),
            nn.BatchNorm1d(experts) if last else nn.Identity(),
            nn.Softmax(dim=1),
        )


GateActivation = Literal["relu", "leaky-relu", "prelu", "elu", "selu", "silu", "mish"]
GateStart = Literal["uniform", "normal", "xavier", "kaiming", "orthogonal", "spectral"]
ACTIVATIONS: Mapping[GateActivation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
}
HIDDEN = ((), (128,), (128, 256), (128, 256, 128))
"""Widths between input and experts, for 1 to 4 layers."""


class DeepGate(nn.Sequential):
    """A sample's scores for the experts (PM-MoE, Section 4.2): flatten → 128 → 256 → 128 → experts."""

    def __init__(
        self,
        inputs: int,
        experts: int,
        depth: int = 4,
        activation: GateActivation = "leaky-relu",
        start: GateStart = "orthogonal",
        reads: nn.Module | None = None,
    ) -> None:
        layers: list[nn.Module] = [nn.Flatten() if reads is None else reads]
        for before, after in pairwise((inputs, *HIDDEN[depth - 1], experts)):
            linear = nn.Linear(before, after)
            _begin(linear.weight, start)
            layers += [linear, ACTIVATIONS[activation]()]
        super().__init__(*layers[:-1])


@torch.no_grad()
def _begin(weight: Tensor, start: GateStart) -> None:
    """Uniform and normal have the scale of PyTorch's own layers; spectral is uniform with the largest stretch 1."""
    width = weight.shape[1] ** -0.5
    if start in ("uniform", "spectral"):
        nn.init.uniform_(weight, -width, width)
    elif start == "normal":
        nn.init.normal_(weight, std=width)
    elif start == "xavier":
        nn.init.xavier_uniform_(weight)
    elif start == "kaiming":
        nn.init.kaiming_uniform_(weight)
    else:
        nn.init.orthogonal_(weight)
    if start == "spectral":
        weight.div_(torch.linalg.matrix_norm(weight, 2))
