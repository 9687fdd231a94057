"""Standalone: every client trains alone. A personalised method that loses to it has not earned its communication."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedexperts.config import Frozen, TrainSettings
from fedexperts.errors import MethodError
from fedexperts.methods.base import Method, Model
from fedexperts.methods.message import Owner, State
from fedexperts.models import Parts, blank
from fedexperts.task import ClientSpec


class Standalone(Method):
    """Nothing is shared, so nothing is sent.

    With `of` everybody has the model of that method, as it is with the method's own defaults, trained by cross-entropy:
    a method whose model is larger than the others' may be better for that alone.
    """

    name = "standalone"
    title = "Standalone"
    source = "the reference of every comparison"
    owners = {"extractor": Owner.PRIVATE, "head": Owner.PRIVATE}

    class Options(Frozen):
        of: str = Field("fedavg", description="the method whose model it is: what is that worth without the others?")

    options: Options

    def __init__(self, train: TrainSettings | None = None, options: Mapping[str, Any] | None = None) -> None:
        from fedexperts.methods import method_class  # here: this file is part of the registry

        super().__init__(train, options)
        self.whole = method_class(self.options.of)(self.train)
        if self.whole.begins() is not None:
            raise MethodError(f"standalone: {self.whole.name} goes on from another run; give --of its base")
        if self.borrowed:
            self.owners = dict.fromkeys(self.whole.owners, Owner.PRIVATE)

    @property
    def note(self) -> str:
        return f"standalone: with {self.whole.title}'s model, which sends nothing" if self.borrowed else ""

    @property
    def borrowed(self) -> bool:
        return self.options.of != "fedavg"

    def parts(self, client: ClientSpec) -> Parts:
        parts = self.whole.parts(client)
        if self.borrowed:
            self._try(Model(parts), client)
        return parts

    def _try(self, model: Model, client: ClientSpec) -> None:
        try:
            # On shapes alone nothing is known of experts that samples choose.
            with suppress(NotImplementedError), torch.no_grad():
                self.predict(model.eval(), blank(client.shape), {})
        except KeyError as error:
            raise MethodError(
                f"standalone: {self.whole.name}'s model does not predict without what its server sends ({error}); give "
                "--of another method, or none"
            ) from error
        model.train()

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.whole.represent(model, x, received)

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.whole.predict(model, x, received)
