"""A client's model as it is used: everything that its method's prediction needs, and no run around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedexperts.data import Form, Scale
from fedexperts.engine.batches import scaled
from fedexperts.engine.executors import QUERY_BATCH, numerics
from fedexperts.engine.program import Program
from fedexperts.engine.usable import Usable
from fedexperts.errors import DataError, ModelError
from fedexperts.methods import Method, Model, State
from fedexperts.models import DenseExperts, SparseExperts
from fedexperts.task import ClientSpec


@dataclass(frozen=True, eq=False)
class ClientModel:
    """Predicts. It can be saved and loaded without the run that it comes from (`fedexperts.export`)."""

    method: Method
    client: ClientSpec
    form: Form  # what a sample is
    class_names: tuple[str, ...]
    tensors: State  # the client's complete model
    received: State  # what the prediction hears of the server: a pool of modules, prototypes …
    precision: str = "float32"
    settled: bool = False  # whether what was learned last was put aside when the run was over

    @classmethod
    def of(cls, run: Usable, client: int, validation: Mapping[int, float]) -> "ClientModel":
        """As it would be used now, with this validation accuracy by the rounds that were evaluated."""
        method, tensors = run.method, run.client_state(client)
        settled = method.settled(tensors, validation)
        differs = any(not torch.equal(tensor.to(tensors[name]), tensors[name]) for name, tensor in settled.items())
        tensors |= settled
        return cls(
            method,
            run.specs[client],
            run.dataset.form,
            tuple(run.dataset.class_names),
            tensors,
            method.needs(tensors, method.heard(run.message_for(client))),
            run.settings.precision,
            differs,
        )

    def predict(self, inputs: Any) -> np.ndarray:
        """Class probabilities: samples × classes. Inputs are like the task's own samples, or plain texts.

        Images are uint8, samples × channels × height × width.
        """
        try:
            samples = torch.from_numpy(self.form.scaled(self.form.take(inputs))).to(self._device)
        except DataError as error:
            raise DataError(f"{self.client.called} takes {error}") from None
        self._program.train_only(())
        predict = self._program.bind(self.method.predict)
        with torch.no_grad(), numerics(self.precision):
            pieces = torch.split(scaled(samples, self._dtype), QUERY_BATCH)
            logits = torch.cat([predict(self.tensors, piece, self.received) for piece in pieces])
        probabilities: np.ndarray = logits.softmax(1).cpu().numpy()
        return probabilities

    def module(self) -> nn.Module:
        """A plain module, probabilities of samples as `predict` takes them: for torch.export and ONNX."""
        with torch.device("meta"):
            model = Model(self.method.parts(self.client)).to(self._dtype)
        model.load_state_dict({name: tensor.cpu().clone() for name, tensor in self.tensors.items()}, assign=True)
        received = {name: tensor.cpu() for name, tensor in self.received.items()}
        return _Deployed(self.method, model, received, self._dtype, self.form)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def _device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    @cached_property
    def _program(self) -> Program:
        with torch.device("meta"):
            program = Program(Model(self.method.parts(self.client)).to(self._dtype))
        found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.tensors.items()}
        names = found.keys() | program.layout.keys()
        if wrong := sorted(name for name in names if found.get(name) != program.layout.get(name)):
            raise ModelError(
                f"the model '{self.client.model}' is not the one that was saved: {', '.join(wrong)} differ"
            )
        return program


class _Deployed(nn.Module):
    """From samples to probabilities."""

    mean: Tensor
    spread: Tensor

    def __init__(
        self, method: Method, model: Model, received: Mapping[str, Tensor], dtype: torch.dtype, form: Form
    ) -> None:
        super().__init__()
        for part in model.modules():
            if type(part) is SparseExperts:
                part.__class__ = DenseExperts
        self.method, self.model, self.dtype = method, model.eval().requires_grad_(False), dtype
        self.names = {name: f"received_{number}" for number, name in enumerate(received)}
        for name, place in self.names.items():
            self.register_buffer(place, received[name])

        scale = form.scale or Scale((0.0,), (1.0,))
        self.register_buffer("mean", torch.tensor(scale.mean, dtype=dtype))
        self.register_buffer("spread", torch.tensor(scale.spread, dtype=dtype))

    def forward(self, samples: Tensor) -> Tensor:
        received = {name: getattr(self, place) for name, place in self.names.items()}
        x = samples
        if x.dtype == torch.uint8:
            x = x.to(self.dtype) / 127.5 - 1.0
        elif x.is_floating_point():
            x = (x.to(self.dtype) - self.mean) / self.spread
        return self.method.predict(self.model, x, received).softmax(1)
