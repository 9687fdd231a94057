"""Texts as rows of word numbers, and the vocabulary that says which word has which number."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedexperts.data.parts import Array

PADDING = 0
"""Fills a row up after the text's last word. It is no word: no model reads it."""
UNKNOWN = 1
"""A word that the vocabulary has not."""
_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """The runs of letters and digits, in lower case; all other characters only separate them."""
    return _WORD.findall(text.lower())


def counted(texts: Iterable[str]) -> Counter[str]:
    """How often each word is in some texts: what a client adds to everybody's, for one vocabulary."""
    return Counter(word for text in texts for word in words(text))


@dataclass(frozen=True)
class Vocabulary:
    """Words that have a number of their own: the first one has 2, after padding and unknown."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """The most frequent words of these texts."""
        return cls.counted(counted(texts), size)

    @classmethod
    def counted(cls, counts: Mapping[str, int], size: int) -> "Vocabulary":
        """The `size` most frequent words; of equally frequent ones, the first in the alphabet."""
        return cls(tuple(sorted(counts, key=lambda word: (-counts[word], word))[:size]))

    def __len__(self) -> int:
        """All numbers that there are."""
        return UNKNOWN + 1 + len(self.words)

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, UNKNOWN + 1)}

    def encode(self, texts: Sequence[str] | Array, length: int) -> Array:
        """Texts × length, as int32: each text's first words, and padding."""
        rows = np.full((len(texts), length), PADDING, np.int32)
        for row, text in zip(rows, texts, strict=True):
            found = [self.numbers.get(word, UNKNOWN) for word in words(text)[:length]]
            row[: len(found)] = found
        return rows
