"""What a sample is: how arrays of the user's own become samples, and which ones a set's models can take."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedexperts.data.parts import Array
from fedexperts.data.scale import Scale
from fedexperts.data.words import Vocabulary
from fedexperts.errors import DataError

Kind = Literal["image", "text", "words", "values"]
CHANNELS = (1, 3, 4)
"""Where one of these stands first or last in the shape of bytes, those are an image's channels."""


@dataclass(frozen=True)
class Form:
    """One sample as a set has it; samples from elsewhere must come to the same."""

    kind: Kind
    shape: tuple[int, ...]  # of one sample in the array
    vocabulary: Vocabulary | None = None  # whose numbers the words have, where texts are numbers
    columns: tuple[str, ...] = ()  # a table's features, in order, where they have names
    scale: Scale | None = None  # of a table's columns

    def scaled(self, samples: Array) -> Array:
        """A table's rows as models take them; anything else as it is."""
        return samples if self.scale is None else self.scale.apply(samples)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """For a model: channels, height and width; a row's features; a text's words and how many numbers a word can be.

        A text is so many one-hot rows, of which only the places of the ones are kept.
        """
        return self.shape if self.vocabulary is None else (*self.shape, len(self.vocabulary))

    def take(self, inputs: Any) -> Array:
        """Samples from elsewhere as this set has its own; plain texts become numbers of words."""
        given = plain(inputs)
        if self.vocabulary is not None:
            if given.dtype.kind == "U" and given.ndim == 1:
                return self.vocabulary.encode(given.tolist(), self.shape[0])
            known = given.dtype == np.int32 and given.shape[1:] == self.shape
            if known and ((given >= 0) & (given < len(self.vocabulary))).all():
                return given
        else:
            found = as_inputs(given) if given.ndim > 1 else given
            if (found.dtype == np.uint8) == (self.kind == "image") and found.shape[1:] == self.shape:
                return found
        what = {"image": "uint8 images", "values": "numbers"}.get(self.kind, "")
        what = what or f"texts, or int32 numbers of words below {len(self.vocabulary or ())}"
        sizes = ", ".join(map(str, ("samples", *self.shape)))
        raise DataError(f"{what} of shape ({sizes}), not {given.dtype} of shape {given.shape}")


def plain(values: Any) -> Array:
    """An array of anything that is one in other words: a tensor, wherever it is, or a list."""
    if hasattr(values, "detach"):  # a tensor; this folder does without torch
        values = values.detach().cpu()
    found = np.asarray(values)
    if found.dtype == object and all(isinstance(value, str) for value in found.flat):
        return found.astype(str)
    return found


def as_inputs(inputs: Any) -> Array:
    """Samples of the user's own, as a set has them: N texts, uint8 images N×C×H×W, or float32 values.

    Bytes of three or four dimensions are images, their channels first or last; all other numbers are values, and stay
    as they are. A sample of values has one dimension (a table's row) or three and more (an image that is scaled
    already): of two dimensions, it could not be told from a text's words.
    """
    found = plain(inputs)
    if found.dtype.kind == "U" and found.ndim == 1:
        return found
    if found.dtype.kind not in "buif" or found.ndim < 2:
        raise DataError(
            f"{found.dtype} of shape {found.shape} are no samples; give an array of numbers whose first dimension is "
            "the sample, or a list of texts"
        )
    if found.dtype == np.uint8 and found.ndim in (3, 4):
        return _image(found)
    if found.ndim == 3:
        raise DataError(
            f"samples of two dimensions {found.shape[1:]} are not taken; give them a channel, "
            f"({len(found)}, 1, {found.shape[1]}, {found.shape[2]}), which your model may take away again"
        )
    values = np.ascontiguousarray(found, np.float32)
    if not np.isfinite(values).all():
        row, *place = np.argwhere(~np.isfinite(values))[0].tolist()
        count = int((~np.isfinite(values)).sum())
        raise DataError(
            f"{count:,} values are missing or infinite, the first in sample {row} at {', '.join(map(str, place))} "
            "(counted from 0); fill them in or leave these samples out"
        )
    return values


def _image(found: Array) -> Array:
    if found.ndim == 3:
        return np.ascontiguousarray(found[:, None])
    if found.shape[1] not in CHANNELS and found.shape[3] in CHANNELS:
        found = np.moveaxis(found, 3, 1)
    return np.ascontiguousarray(found)
