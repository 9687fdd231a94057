"""One reading of everybody's data: the classes, words and scales that sites agree on before the first round.

Each site tells a little of its own training data, the server puts it together, and all read their data by the result:
the one that a simulation with the same clients would find.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedexperts.config import Frozen, Settings
from fedexperts.data import Dataset, Samples, Scale, Sums, Vocabulary, classes_of, in_order
from fedexperts.errors import DataError, FederationError

MOST_WORDS, MOST_BYTES = 100_000, 3 << 20
"""That a site tells of its words, the most frequent first."""
MOST_LETTERS = 60
"""Of a word that is told."""
MOST_CLASSES = 10_000
MOST_VALUES = 1 << 26
"""Of a sample."""
Label = Annotated[str, Field(min_length=1, max_length=200)]
Word = Annotated[str, Field(min_length=1, max_length=MOST_LETTERS)]
Size = Annotated[int, Field(ge=1, le=1 << 24)]
Times = Annotated[int, Field(ge=1, le=10**12)]
Value = Annotated[float, Field(ge=-1e300, le=1e300, allow_inf_nan=False)]
Spread = Annotated[float, Field(gt=0, le=1e300, allow_inf_nan=False)]
Columns = Annotated[tuple[Label, ...], Field(max_length=100_000)]
Row = Annotated[tuple[Value, ...], Field(min_length=1, max_length=100_000)]
Kind = Literal["image", "text", "values"]


class ColumnSums(Frozen):
    """Of a table's training rows."""

    count: int = Field(ge=1, le=10**12)
    total: Row
    squares: Row


class Told(Frozen):
    """What a site tells of its own data."""

    kind: Kind
    shape: tuple[Size, ...] = Field(max_length=8)  # of a sample as it is in the site's files; of a text, none
    labels: tuple[Label, ...] = Field(default=(), max_length=MOST_CLASSES)  # the names of its classes
    largest: int | None = Field(default=None, ge=0, lt=MOST_CLASSES)  # where they are numbers from 0, the last
    folders: bool = False  # whether the names are those of folders, which all must have
    columns: Columns = ()
    sums: ColumnSums | None = None
    words: dict[Word, Times] | None = Field(default=None, max_length=MOST_WORDS)

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if bool(self.labels) == (self.largest is not None):
            raise ValueError("classes have names, or numbers")
        widths = [len(row) for row in (self.sums.total, self.sums.squares)] if self.sums else []
        if any((width,) != self.shape for width in widths) or len(self.columns) not in (0, *self.shape):
            raise ValueError("not as many columns as a sample has values")
        return self

    def samples(self, site: str) -> Samples:
        """So far as classes go, the site's samples."""
        labels = np.array(self.labels) if self.largest is None else np.array([self.largest])
        return Samples(site, np.empty(0), labels, self.labels if self.folders else (), self.columns)

    @property
    def said(self) -> str:
        """In words, for people."""
        classes = ", ".join(self.labels) or f"0 … {self.largest}"
        words = [f"how often it has each of {len(self.words):,} words"] if self.words is not None else []
        sums = ["number, sums and sums of squares of its columns"] if self.sums else []
        columns = [f"columns {', '.join(self.columns)}"] if self.columns else []
        return "; ".join([f"classes {classes}", *columns, *words, *sums])


def frequent(counts: Mapping[str, int]) -> dict[str, int]:
    """Of some words and how often they occur, as many as may be told."""
    known = Vocabulary.counted({w: n for w, n in counts.items() if len(w) <= MOST_LETTERS}, MOST_WORDS).words
    sizes = accumulate(len(word.encode()) + 16 for word in known)
    return {word: counts[word] for word, size in zip(known, sizes, strict=True) if size <= MOST_BYTES}


class Reading(Frozen):
    """How every site reads its data."""

    kind: Kind
    classes: tuple[Label, ...] = Field(min_length=2, max_length=MOST_CLASSES)
    shape: tuple[Size, ...] = Field(max_length=8)  # of a sample, or of a text as numbers of words: its length
    words: tuple[Word, ...] | None = Field(default=None, max_length=1_000_000)
    columns: Columns = ()
    mean: Row | None = None
    spread: Annotated[tuple[Spread, ...], Field(max_length=100_000)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if math.prod(self.shape) > MOST_VALUES:
            raise ValueError(f"samples of more than {MOST_VALUES:,} values")
        twice = [len(set(names)) < len(names) for names in (self.classes, self.words or (), self.columns)]
        widths = {(len(row),) for row in (self.mean, self.spread) if row is not None}
        if any(twice) or not widths <= {self.shape} or (self.words is None) == (self.kind == "text"):
            raise ValueError("a reading whose pieces do not go together")
        if (self.mean is None) != (self.spread is None) or (self.kind == "text" and len(self.shape) != 1):
            raise ValueError("a reading that lacks something")
        return self

    @cached_property
    def dataset(self) -> Dataset:
        """A set that is read so; its one sample is nobody's."""
        kinds = {"image": np.uint8, "text": np.int32, "values": np.float32}
        scale = Scale(self.mean, self.spread) if self.mean and self.spread else None
        words = None if self.words is None else Vocabulary(self.words)
        blank = np.zeros((1, *self.shape), kinds[self.kind])
        return Dataset("own", blank, np.zeros(1, np.int64), self.classes, "", words, self.columns, scale)


def agreed(told: Mapping[int, Told], sites: Sequence[str] | Mapping[int, str], settings: Settings) -> Reading:
    """What all sites together come to; an error that names the site where it is nothing."""
    every = [told[client] for client in sorted(told)]
    named = [f"site {sites[client]}" for client in sorted(told)]
    first = every[0]
    shape = _shape(every, named)
    try:
        classes = classes_of([one.samples(name) for one, name in zip(every, named, strict=True)])
        sums = [_in_order(one, first.columns, name) for one, name in zip(every, named, strict=True)]
    except DataError as error:
        raise FederationError(str(error)) from None
    reading: dict[str, Any] = {"kind": first.kind, "classes": classes, "shape": shape, "columns": first.columns}
    if first.kind == "text":
        counts: Counter[str] = Counter()
        for words in (one.words for one in every if one.words is not None):
            counts.update(words)
        if not counts:
            raise FederationError("no site tells how often it has which words, so there is no vocabulary")
        reading |= {
            "words": Vocabulary.counted(counts, settings.vocabulary).words,
            "shape": (settings.text_length,),
        }
    elif first.kind == "values" and len(shape) == 1:
        if not (given := [one for one in sums if one is not None]):
            raise FederationError("no site tells its columns' sums, so there is no scale for them")
        scale = Scale.of(given)
        reading |= {"mean": scale.mean, "spread": scale.spread}
    return Reading.check(reading)


def _shape(every: Sequence[Told], named: Sequence[str]) -> tuple[int, ...]:
    """Of a sample at all sites; grey pictures among coloured ones become coloured."""
    first = next((one for one in every if one.kind == "image" and one.shape[:1] == (3,)), every[0])
    grey = (1, *first.shape[1:]) if first.kind == "image" and first.shape[:1] == (3,) else first.shape
    for one, name in zip(every, named, strict=True):
        if one.kind != first.kind or one.shape not in (first.shape, grey):
            raise FederationError(
                f"{name} has samples of kind {one.kind} and shape {one.shape}, {named[every.index(first)]} of kind "
                f"{first.kind} and shape {first.shape}; all sites' samples must be alike"
            )
    return first.shape


def _in_order(one: Told, columns: tuple[str, ...], name: str) -> Sums | None:
    """A site's sums, in the order that all have their columns in."""
    rows = np.array([one.sums.total, one.sums.squares] if one.sums else [[0.0] * len(one.columns)] * 2)
    ordered = in_order(rows, one.columns, columns, name)
    return Sums(one.sums.count, *ordered) if one.sums else None
