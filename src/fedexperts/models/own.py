"""Models of the user's own: any module, or a function that makes one, as the parts `extractor` and `head`."""

import copy
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import torch
from torch import Tensor, nn

from fedexperts.errors import ModelError, SettingsError, suggestion
from fedexperts.models.cnn import Shape

Parts = dict[str, nn.Module]
Maker = Callable[[Shape, int], "nn.Module | Parts"]
ModelSource = str | nn.Module | Maker
"""A model as a user gives it: its name, a module, or a function (shape, classes) → module."""


class Extractor(nn.Module):
    """A module of the user's own up to its last layer; `features` is how many it gives."""

    def __init__(self, net: nn.Module, features: int) -> None:
        super().__init__()
        self.net = net
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x).flatten(1))


@dataclass(frozen=True)
class OwnModel:
    """A module, whose weights every copy begins with, or a function that makes a fresh one."""

    name: str
    source: nn.Module | Maker
    head: str | None = None
    place: str = ""  # that it can be imported from, where it is called otherwise

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, source: nn.Module | Maker, head: str | None = None) -> "OwnModel":
        """With the name that it can be imported by, if it can."""
        if isinstance(source, nn.Module):
            return cls(type(source).__name__, source, head)
        if not callable(source):
            raise ModelError(f"a model is its name, a module or a function (shape, classes) → module, not {source!r}")
        place = f"{getattr(source, '__module__', '')}:{getattr(source, '__qualname__', type(source).__name__)}"
        importable = getattr(sys.modules.get(place.partition(":")[0]), place.partition(":")[2], None) is source
        fresh = importable and head is None and not place.startswith("__main__:")
        return cls(place if fresh else place.partition(":")[2], source, head)

    def module(self, shape: Shape, classes: int) -> nn.Module | Parts:
        """The whole model, not yet in parts: a copy of the module, or what the function makes."""
        if isinstance(self.source, nn.Module):
            return copy.deepcopy(self.source).to(torch.empty(0).device)  # where new modules are made just now
        return self.source(shape, classes)

    def build(self, shape: Shape, classes: int) -> Parts:
        return parts_of(self.module(shape, classes), self.head, self.name)


def told_apart(models: Sequence[str | OwnModel]) -> tuple[str | OwnModel, ...]:
    """The same models; different ones of the user's own that are called alike get numbers after their names."""
    found: dict[str | OwnModel, str | OwnModel] = {}
    for model in dict.fromkeys(models):
        alike = sum(str(other) == str(model) for other in found)
        number = f" {alike + 1}" * (alike > 0)
        found[model] = model if isinstance(model, str) else replace(model, name=model.name + number)
    return tuple(found[model] for model in models)


def split(model: nn.Module, head: str) -> Parts:
    """A module in two: all up to its last layer, and that layer, known by its name ("fc", "classifier.6")."""
    net = copy.deepcopy(model)
    layers = dict(net.named_modules())
    linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    last = layers.get(head) if head else None
    if last is None:
        known = suggestion(head, linear) or f"; its Linear layers are: {', '.join(linear) or 'none'}"
        raise ModelError(f"{type(model).__name__} has no layer '{head}'{known}")
    if not isinstance(last, nn.Linear):
        raise ModelError(
            f"head='{head}' of {type(model).__name__} is a {type(last).__name__}; the last layer is a Linear"
        )
    net.set_submodule(head, nn.Identity())
    return {"extractor": Extractor(net, last.in_features), "head": last}


def parts_of(model: nn.Module | Parts, head: str | None, name: str) -> Parts:
    """A model's parts: those that it names itself, or what `head` makes of it; a Sequential ends with its head."""
    if isinstance(model, Mapping):
        model = nn.ModuleDict(model)
    elif not isinstance(model, nn.Module):
        raise ModelError(f"model '{name}' is a {type(model).__name__}; a torch module is needed")
    elif head is not None:
        return split(model, head)
    elif isinstance(model, nn.Sequential) and len(model) > 1 and isinstance(model[-1], nn.Linear):
        return split(model, list(dict(model.named_children()))[-1])
    parts = dict(model.named_children())
    if not {"extractor", "head"} <= parts.keys():
        linear = [layer for layer, module in model.named_modules() if isinstance(module, nn.Linear)]
        last = linear[-1] if linear else "fc"
        raise ModelError(
            f"model '{name}' ({type(model).__name__}) has no parts 'extractor' and 'head'; name its last layer, "
            f"perhaps head='{last}' (a function returns fedexperts.split(model, '{last}'))"
        )
    if others := [part for part, module in parts.items() if part not in ("extractor", "head") and _holds(module)]:
        raise ModelError(f"model '{name}' has weights in {', '.join(others)}, outside its parts extractor and head")
    extractor, last_layer = parts["extractor"], parts["head"]
    if not isinstance(last_layer, nn.Linear):
        raise ModelError(f"the head of model '{name}' is a {type(last_layer).__name__}; it is a Linear")
    if not isinstance(getattr(extractor, "features", None), int):
        extractor = Extractor(extractor, last_layer.in_features)
    return {"extractor": extractor, "head": last_layer}


def _holds(module: nn.Module) -> bool:
    return next(iter(module.state_dict()), None) is not None


def check_own(model: OwnModel, shape: Shape, classes: int, sample: Tensor, who: str) -> None:
    """An error that names the client, where its model cannot be trained here or does not fit its samples.

    `sample`: some samples as models take them.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            whole = model.module(shape, classes)
            parts = parts_of(whole, model.head, model.name)
        except ModelError as error:
            raise ModelError(f"{who}: {error}") from None
        except Exception as error:  # the user's code may raise anything
            raise ModelError(
                f"{who}: model '{model}' cannot be made for samples of shape {shape} and {classes} classes: "
                f"{type(error).__name__}: {error}"
            ) from error
    extractor, head = parts["extractor"].eval(), cast(nn.Linear, parts["head"])
    for trouble in (trouble for part in parts.values() for trouble in _troubles(part)):
        raise ModelError(f"{who}: model '{model}' {trouble}")
    if head.out_features != classes:
        raise ModelError(f"{who}: model '{model}' ends in {head.out_features} outputs, the data have {classes} classes")
    with torch.no_grad():
        try:
            features = extractor(sample)
        except Exception as error:
            raise ModelError(
                f"{who}: model '{model}' does not take samples of shape {tuple(sample.shape[1:])}: {error}"
            ) from error
        if tuple(features.shape) != (len(sample), head.in_features):
            raise ModelError(
                f"{who}: the extractor of model '{model}' gives {tuple(features.shape[1:])} for a sample, its head "
                f"takes {head.in_features} features"
            )
        can_answer = isinstance(whole, nn.Module) and type(whole).forward is not nn.Module.forward
        answers = cast(nn.Module, whole).eval()(sample) if can_answer else head(features)
        if not torch.allclose(answers, head(features), rtol=1e-3, atol=1e-4):
            raise ModelError(
                f"{who}: model '{model}' answers otherwise than its head does on its extractor's features: nothing "
                "may come after the head (a softmax is part of the loss), and nothing may go past it"
            )


def _troubles(part: nn.Module) -> Iterator[str]:
    """What cannot be kept, stacked or repeated, as the end of a sentence."""
    saved = part.state_dict().keys()
    for name, module in part.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            where = f"{type(module).__name__} ('{name.removeprefix('net.')}')"
            yield f"has a {where}, whose random numbers could not be repeated; take it out (nn.Identity())"
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"keeps a tensor '{key}' in {type(module).__name__} that is no buffer; use register_buffer"
    for name, _ in part.named_buffers():
        if name not in saved:
            yield f"has a buffer '{name.removeprefix('net.')}' that is not saved; leave out persistent=False"


def is_place(name: str) -> bool:
    """Whether a model's name says where it can be imported from: "package.module:function"."""
    return ":" in name


@cache
def imported(place: str) -> OwnModel:
    """The model of a function that is named "package.module:function"; modules may lie in the present folder."""
    module, _, name = place.partition(":")
    if module.endswith(".py"):
        raise SettingsError(f"model '{place}': leave out .py: {module.removesuffix('.py').replace('/', '.')}:{name}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise SettingsError(f"model '{place}': {module} cannot be imported: {error}") from None
        raise SettingsError(
            f"model '{place}': there is no module '{error.name}'; it is looked for in {here} and on PYTHONPATH"
        ) from None
    except Exception as error:  # the user's code may raise anything
        raise SettingsError(f"model '{place}': {module} cannot be imported: {type(error).__name__}: {error}") from error
    source = getattr(found, name, None)
    if not callable(source):
        hint = suggestion(name, [key for key, value in vars(found).items() if callable(value)])
        raise SettingsError(f"model '{place}': {module} has no function '{name}'{hint}")
    return OwnModel(place, source)
