"""The model that all clients share beside their own: which one it is, is a setting of the methods that have one."""

from typing import Annotated

from pydantic import AfterValidator, Field

from fedexperts.config import Frozen
from fedexperts.models import check_model


class SharedModel(Frozen):
    """For the `Options` of such a method."""

    shared_model: Annotated[str, AfterValidator(check_model)] | None = Field(
        None, description="model of the zoo that all clients share (default: cnn5; texts: fasttext)"
    )
