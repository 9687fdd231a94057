"""A client's model as a pure function of named tensors, the same for all clients of one shape."""

import copy
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedexperts.engine.patches import fix_shapes, make_stackable, with_fixed_shapes
from fedexperts.methods import Model, State


def signature(model: nn.Module) -> Hashable:
    """Equal for two models exactly when one can compute with the other's tensors: layers, their settings, shapes."""
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):  # arrays in full
        modules = tuple(
            (
                name,
                type(module),
                tuple(sorted((k, repr(v)) for k, v in vars(module).items() if _is_setting(k, v))),
            )
            for name, module in model.named_modules()
        )
    tensors = tuple((name, tuple(t.shape), t.dtype) for name, t in model.state_dict().items())
    return modules, tensors


_TORCHS_OWN = vars(nn.Module()).keys()


def _is_setting(key: str, value: Any) -> bool:
    return key not in _TORCHS_OWN and not isinstance(value, Tensor | nn.Module)


class Program:
    """Calls any function of a model with a client's tensors in place of the model's own."""

    def __init__(self, model: Model) -> None:
        self.signature = signature(model)
        self.parameters = tuple(name for name, _ in model.named_parameters())
        self.layout = {name: (tuple(t.shape), t.dtype) for name, t in model.state_dict().items()}
        self._model = model.to("meta")
        self._local = threading.local()  # functional_call changes the module meanwhile: one copy per thread

    @property
    def model(self) -> Model:
        if not hasattr(self._local, "model"):
            self._local.model = copy.deepcopy(self._model)
        model: Model = self._local.model
        return model

    @cached_property
    def fixed(self) -> bool:
        """Whether it can have shapes that depend on no values, as a stack and a graph want; else there is only a loop.

        Experts that normalise what they are sent cannot: who is sent where decides over how many samples.
        """
        return with_fixed_shapes(self._model)

    @cached_property
    def captured(self) -> "Program":
        """The same program for one client whose steps are captured as a graph."""
        return self._changed(fix_shapes)

    @cached_property
    def stacked(self) -> "Program":
        """The same program for a stack of clients."""
        return self._changed(make_stackable)

    def _changed(self, change: Callable[[nn.Module], None]) -> "Program":
        twin = copy.copy(self)
        twin._model, twin._local = copy.deepcopy(self._model), threading.local()
        change(twin._model)
        return twin

    def blank(self) -> State:
        """Tensors of the right shapes, not yet filled."""
        return {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in self.layout.items()}

    def train_only(self, parts: tuple[str, ...]) -> None:
        """The named parts are in training mode, all others in evaluation mode."""
        for name, part in self.model.named_children():
            part.train(name in parts)

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function(model, *args)` as a pure function of (tensors, *args)."""

        def call(tensors: Mapping[str, Tensor], *args: Any) -> Any:
            return functional_call(self.model, dict(tensors), (function, *args), strict=True)

        return call
