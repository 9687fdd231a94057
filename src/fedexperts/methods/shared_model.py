"""The model that all clients share beside their own: which one it is, is a setting of the methods that have one."""

from typing import Annotated

from pydantic import AfterValidator, Field

from fedexperts.config import Frozen
from fedexperts.models import ModelRef, check_model, smallest
from fedexperts.task import ClientSpec


class SharedModel(Frozen):
    """For the `Options` of such a method."""

    shared_model: Annotated[str, AfterValidator(check_model)] | None = Field(
        None, description="model that all clients share (default: --common-model, else cnn5; texts: fasttext)"
    )


def shared_model(options: SharedModel, client: ClientSpec) -> ModelRef:
    """The model that all clients share: the method's own choice, the task's, or the smallest for such data."""
    return options.shared_model or client.common or smallest(client.shape)
