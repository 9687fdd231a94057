"""Every model by name, as named parts. Nothing here is federated."""

from collections.abc import Callable

from torch import nn

from fedexperts.errors import SettingsError, suggestion
from fedexperts.models.cnn import ConvExtractor, Shape

Parts = dict[str, nn.Module]


def _cnn(filters: tuple[int, ...], widths: tuple[int, ...]) -> Callable[[Shape, int], Parts]:
    def build(shape: Shape, classes: int) -> Parts:
        extractor = ConvExtractor(shape, filters, widths)
        return {"extractor": extractor, "head": nn.Linear(extractor.features, classes)}

    return build


MODELS: dict[str, Callable[[Shape, int], Parts]] = {
    # FedMoE, Table 4. CNN-4 as printed (FC1 = 800) has 4.05 MiB on CIFAR-10 where the table says 3.81.
    "cnn1": _cnn((16, 32), (2000, 500)),
    "cnn2": _cnn((16, 16), (2000, 500)),
    "cnn3": _cnn((16, 32), (1000, 500)),
    "cnn4": _cnn((16, 32), (800, 500)),
    "cnn5": _cnn((16, 32), (500, 500)),
    # FedMoE-DA: two convolutions, two linear layers; the paper prints no widths, these are LeNet's.
    "cnn-da": _cnn((6, 16), (120,)),
    # PM-MoE: the four-layer CNN of McMahan et al. 2017.
    "cnn-pm": _cnn((32, 64), (512,)),
}
"""Name → builder of the parts `extractor` and `head` for an input shape and a number of classes."""

SMALLEST = "cnn5"
"""The small homogeneous model that FedMoE and the mutual-learning methods share."""


def check_model(name: str) -> str:
    if name not in MODELS:
        raise SettingsError(f"unknown model '{name}'{suggestion(name, MODELS) or ';'} known: {', '.join(MODELS)}")
    return name


def build(name: str, shape: Shape, classes: int) -> Parts:
    """The parts of a model, freshly initialised from torch's generator."""
    return MODELS[check_model(name)](shape, classes)
