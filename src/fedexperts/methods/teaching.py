"""Experts that learn from fetched ones by what those say of local samples: for experts of different shapes."""

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedexperts.errors import MethodError, ModelError, SettingsError
from fedexperts.methods.message import State
from fedexperts.methods.neighbours import Neighbours
from fedexperts.models import IMAGE_MODELS, MODELS, SLIM, Shape, cut
from fedexperts.task import ClientSpec

Layout = tuple[tuple[str, tuple[int, ...]], ...]


class Teachers(Neighbours):
    """Also some embedded samples of the client, and what its neighbours say of them: probabilities for each expert."""

    answers: Tensor
    due: Tensor

    def __init__(self, experts: int, asked: int, classes: int, samples: int, embedded: Shape) -> None:
        super().__init__(experts, asked)
        self.register_buffer("samples", torch.zeros(samples, *embedded))
        self.register_buffer("answers", torch.full((experts, samples, classes), 1 / classes))
        self.register_buffer("due", torch.tensor(0.0))  # 1 from when they were asked until it is learnt

    def disagreement(self, logits: Sequence[Tensor], temperature: float) -> Tensor:
        """Σ_i KL(Σ_j a_ij·p_j ‖ p_i), i the own experts, times the temperature's square: gradients keep their size.

        It moves p_i as Σ_j a_ij·KL(p_j ‖ p_i) would.
        """
        found = (torch.stack(list(logits)) / temperature).log_softmax(2)
        distance = (torch.xlogy(self.answers, self.answers) - self.answers * found).sum(2).mean(1).sum()
        return self.due * temperature**2 * distance


def ask(experts: Sequence[State], embedded: Tensor, temperature: float, client: ClientSpec) -> Tensor:
    """What experts of any shapes say of samples: experts × samples × classes, probabilities at a temperature."""
    networks: dict[str, nn.Module] = {}
    found = []
    for tensors in experts:
        name = _model_of(_layout(tensors), client.model, client.shape, client.classes)
        if name not in networks:
            with torch.device("meta"):  # in evaluation mode: a peer's running statistics are not to move
                networks[name] = cut(name, client.shape, client.classes)[1].eval()
        with torch.no_grad():
            found.append((functional_call(networks[name], tensors, embedded) / temperature).softmax(1))
    return torch.stack(found)


@lru_cache(maxsize=64)
def _model_of(layout: Layout, own: str, shape: Shape, classes: int) -> str:
    """The model whose expert has such tensors: they do not say how they are put together, but models are few."""
    for name in (own, *MODELS, *(f"{name}/{slim}" for name in IMAGE_MODELS for slim in SLIM)):
        with suppress(SettingsError, ModelError), torch.device("meta"):  # it may not be for such data
            if _layout(cut(name, shape, classes)[1].state_dict()) == layout:
                return name
    raise MethodError(f"a fetched expert is of no known model; its tensors: {dict(layout)}")


def _layout(tensors: State) -> Layout:
    return tuple(sorted((name, tuple(tensor.shape)) for name, tensor in tensors.items()))
