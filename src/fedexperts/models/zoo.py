"""Every model by name, as named parts. Nothing here is federated."""

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from fedexperts.errors import SettingsError, suggestion
from fedexperts.models.backbones import googlenet, mobilenet, resnet
from fedexperts.models.cnn import ConvExtractor, Shape
from fedexperts.models.mlp import TableExtractor
from fedexperts.models.own import ModelSource, OwnModel, Parts, imported, is_place
from fedexperts.models.text import TextExtractor, WordMean

ModelRef = str | OwnModel
"""A client's model: the name of one of ours, the place that one can be imported from, or one that is at hand."""
Builder = Callable[[Shape, int], Parts]
ImageBuilder = Callable[[Shape, int, int], Parts]
"""The same with all widths divided by a number, the last."""


def _cnn(filters: tuple[int, ...], widths: tuple[int, ...]) -> ImageBuilder:
    def build(shape: Shape, classes: int, slim: int) -> Parts:
        slimmer = ([max(1, width // slim) for width in full] for full in (filters, widths))
        return _with_head(ConvExtractor(shape, *slimmer), classes)

    return build


def _fasttext(width: int, widths: tuple[int, ...] = ()) -> Builder:
    def build(shape: Shape, classes: int) -> Parts:
        return _with_head(TextExtractor(shape, width, widths), classes)

    return build


def _mlp(*widths: int) -> Builder:
    def build(shape: Shape, classes: int) -> Parts:
        return _with_head(TableExtractor(shape, widths), classes)

    return build


def _with_head(extractor: nn.Module, classes: int) -> Parts:
    return {"extractor": extractor, "head": nn.Linear(cast(int, extractor.features), classes)}


BACKBONES: dict[str, Callable[[Shape, int], nn.Module]] = {
    "resnet18": partial(resnet, (2, 2, 2, 2)),
    "resnet34": partial(resnet, (3, 4, 6, 3)),
    "mobilenet": mobilenet,
    "googlenet": googlenet,
    "mobilenet-512": partial(mobilenet, joined=2),
    "googlenet-512": partial(googlenet, joined=2),
}
"""FedEMoE, Table 3. Name → builder of the extractor for an input shape, with all widths divided by a number.

Those with -512 end like the ResNets, in means over two of their 1024 features, for methods that compare or share what
follows.
"""


def _backbone(name: str) -> ImageBuilder:
    def build(shape: Shape, classes: int, slim: int) -> Parts:
        return _with_head(BACKBONES[name](shape, slim), classes)

    return build


IMAGE_MODELS: dict[str, ImageBuilder] = {
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
    **{name: _backbone(name) for name in BACKBONES},
}
"""Name → builder of the parts. The number that divides all widths stands in a model's name after a slash: `resnet18/8`

is ResNet-18 with an eighth of its filters.
"""
TEXT_WIDTH = 32
TEXT_MODELS: dict[str, Builder] = {
    # Joulin et al. 2017. PM-MoE prints no width; 32 is what the methods that it builds on use for AG News.
    "fasttext": _fasttext(TEXT_WIDTH),
    # Ours: a larger one that ends alike, for clients that differ.
    "fasttext-wide": _fasttext(128, (TEXT_WIDTH,)),
}
SLIM = ("2", "4", "8", "16")
TABLE_MODELS: dict[str, Builder] = {
    # Ours, for rows of numbers; both end alike.
    "mlp": _mlp(64, 32),
    "mlp-wide": _mlp(256, 64, 32),
}
PLAIN_MODELS = TEXT_MODELS | TABLE_MODELS
"""Name → builder of the parts `extractor` and `head` for an input shape and a number of classes."""
MODELS = (*IMAGE_MODELS, *PLAIN_MODELS)


def reads_text(shape: Shape) -> bool:
    """Whether samples of this shape are texts: words × vocabulary, where images are channels × height × width."""
    return len(shape) == 2


def _fitting(shape: Shape) -> tuple[str, tuple[str, ...]]:
    """What samples of this shape are, and our models for them."""
    if reads_text(shape):
        return "texts", tuple(TEXT_MODELS)
    return ("rows of a table", tuple(TABLE_MODELS)) if len(shape) == 1 else ("images", tuple(IMAGE_MODELS))


def smallest(shape: Shape) -> str:
    """The small homogeneous model that FedMoE and the mutual-learning methods share."""
    return "cnn5" if len(shape) == 3 else _fitting(shape)[1][0]


def check_model(name: str, shape: Shape | None = None) -> str:
    """The name itself, if there is such a model and, given a shape, it is one for such samples."""
    if is_place(name):
        imported(name)
        return name
    base, slash, slim = name.partition("/")
    if base not in MODELS:
        raise SettingsError(
            f"unknown model '{name}'{suggestion(base, MODELS) or ';'} known: {', '.join(MODELS)}; "
            "one of your own is package.module:function"
        )
    if slash and (base not in IMAGE_MODELS or slim not in SLIM):
        raise SettingsError(
            f"there is no model '{name}': {', '.join(IMAGE_MODELS)} may be slimmer, by {', '.join(SLIM)}: resnet18/8"
        )
    if shape is not None:
        kind, fitting = _fitting(shape)
        if base not in fitting or len(shape) > 3:
            known = ", ".join(fitting) if len(shape) <= 3 else "none of ours, give your own"
            raise SettingsError(f"model '{name}' is not for {kind}; for them there is: {known}")
    return name


def model_ref(source: ModelSource, head: str | None = None) -> ModelRef:
    """A user's model as clients have it; `head` names the last layer of a module that has no parts."""
    if not isinstance(source, str):
        return OwnModel.of(source, head)
    if head is not None:
        raise SettingsError(f"head='{head}' is for a module of your own; model '{source}' is a name")
    return check_model(source)


def own_model(model: ModelRef) -> OwnModel | None:
    """The model, if it is one of the user's own."""
    return model if isinstance(model, OwnModel) else imported(model) if is_place(model) else None


def place_of(model: ModelRef) -> str:
    """What a model is found by: its name, or where it can be imported from if it is called otherwise."""
    return (model.place if isinstance(model, OwnModel) else "") or str(model)


def build(model: ModelRef, shape: Shape, classes: int) -> Parts:
    """The parts of a model, freshly initialised from torch's generator."""
    if (own := own_model(model)) is not None:
        return own.build(shape, classes)
    base, _, slim = check_model(str(model), shape).partition("/")
    if base in IMAGE_MODELS:
        return IMAGE_MODELS[base](shape, classes, int(slim or 1))
    return PLAIN_MODELS[base](shape, classes)


def is_backbone(model: ModelRef) -> bool:
    """Whether it is one of the deep networks, of any width."""
    return isinstance(model, str) and model.partition("/")[0] in BACKBONES


def out_shape(module: nn.Module, shape: Shape) -> Shape:
    """What a module makes of a sample of this shape; looking leaves no trace in it."""
    was, looking = module.training, module.eval()
    with torch.no_grad():
        found = tuple(looking(blank(shape)).shape[1:])
    module.train(was)
    return found


def flat(shape: Shape) -> tuple[nn.Module, int]:
    """What a layer on the plain input begins with, and how many values a sample has then.

    An image's pixels. The numbers of words are names, not amounts: of a text, the mean embedding of its words, which
    is learned with the layer.
    """
    if reads_text(shape):
        return WordMean(shape, TEXT_WIDTH), TEXT_WIDTH
    return nn.Flatten(), math.prod(shape)


def blank(shape: Shape) -> Tensor:
    """One sample without content, as models take it."""
    return torch.zeros(1, shape[0], dtype=torch.int64) if reads_text(shape) else torch.zeros(1, *shape)
