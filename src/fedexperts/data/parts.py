"""What every reader hands over, and the checks that all forms of a data set share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedexperts.data.registry import SetInfo
from fedexperts.errors import DataError

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Part:
    """The samples of one split, as they stand in its files."""

    where: str
    inputs: Array
    """Images N×H×W or N×H×W×C, or N texts."""
    labels: Array
    first: int = 0
    """The number that the file gives to the first class."""


@dataclass(frozen=True, eq=False)
class Found:
    """A data set as one of the readers found it, not yet checked."""

    source: str
    parts: tuple[Part, ...]
    class_names: tuple[str, ...]
    note: str = ""


@contextmanager
def reading(where: object, form: str) -> Iterator[None]:
    """Whatever a parser stumbles over within the block becomes one `DataError` that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # corrupt bytes make parsers raise almost anything
        raise DataError(
            f"{where} cannot be read as {form} ({type(error).__name__}: {error}); "
            "it is truncated, damaged or something else: put a fresh copy there"
        ) from error


def checked(part: Part, info: SetInfo) -> tuple[Array, Indices]:
    """The inputs (images now N×C×H×W) and labels from 0, or a `DataError` that names the file."""
    inputs = part.inputs
    if info.shape is None:
        fits, wanted = inputs.dtype.kind == "U" and inputs.ndim == 1, "a list of texts"
    else:
        shapes = (info.shape, *info.reduced)
        inputs = inputs[..., None] if inputs.ndim == 3 else inputs
        fits = inputs.dtype == np.uint8 and (*inputs.shape[3:], *inputs.shape[1:3]) in shapes
        inputs = np.moveaxis(inputs, -1, 1) if fits else inputs
        wanted = "uint8 images, " + " or ".join(f"(N, {h}, {w}" + f", {c}" * (c > 1) + ")" for c, h, w in shapes)
    if not fits:
        found = f"{part.inputs.dtype} values of shape {part.inputs.shape}"
        raise DataError(f"{part.where} holds {found}; {info.name} is {wanted}")
    check_labels(part.where, part.labels, len(inputs), info.classes, part.first)
    return inputs, part.labels.astype(np.int64) - part.first


def check_labels(where: str, labels: Array, samples: int, classes: int, first: int = 0) -> None:
    """One whole number per sample, `first` … `first + classes - 1`."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"{where} has labels of type {labels.dtype} and shape {labels.shape}; one whole number each")
    if len(labels) != samples:
        raise DataError(f"{where} has {samples:,} samples but {len(labels):,} labels")
    if not samples:
        raise DataError(f"{where} holds no samples")
    low, high = int(labels.min()), int(labels.max())
    if low < first or high >= first + classes:
        raise DataError(
            f"{where} has labels from {low} to {high}; "
            f"of {classes} classes they run from {first} to {first + classes - 1}"
        )
