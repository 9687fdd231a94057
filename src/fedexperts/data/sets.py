"""Data sets by name, from whatever form of them the user has."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from fedexperts.data import hub, own, plain, publisher
from fedexperts.data.counts import apportion, deal
from fedexperts.data.form import Form, Kind
from fedexperts.data.parts import Array, Found, Indices, check_labels, checked
from fedexperts.data.registry import SetInfo, find, known
from fedexperts.data.scale import Scale, Sums
from fedexperts.data.words import Vocabulary
from fedexperts.errors import DataError
from fedexperts.randomness import stream

FOLDER_VARIABLE = "FEDEXPERTS_DATA"


@dataclass(frozen=True, eq=False)
class Dataset:
    """All samples of a set, train and test of its publisher together."""

    name: str
    inputs: Array
    """Images: uint8, N×C×H×W. Values, of tables and the like: float32, N×…, which models take as they are. Texts: N

    strings, or N×length numbers of words (int32), which is what models read.
    """
    labels: Indices
    class_names: tuple[str, ...]
    note: str = ""
    """Where the data came from and how it differs from what was published."""
    vocabulary: Vocabulary | None = None
    """Whose numbers the words have, where texts are numbers."""
    columns: tuple[str, ...] = ()
    """The features of a table, where they have names."""
    scale: Scale | None = None
    """Of a table's columns; `inputs` are as they came."""

    def __post_init__(self) -> None:
        dtype, ndim = self.inputs.dtype, self.inputs.ndim
        is_image = dtype == np.uint8 and ndim == 4 and self.inputs.flags.c_contiguous
        is_values = dtype == np.float32 and ndim in (2, *range(4, 9)) and self.inputs.flags.c_contiguous
        is_text = dtype.kind == "U" and ndim == 1
        is_words = dtype == np.int32 and ndim == 2
        if not (is_image or is_values or is_text or is_words) or is_words != (self.vocabulary is not None):
            raise DataError(
                f"data set '{self.name}' has {dtype} inputs of shape {self.inputs.shape}; "
                "images are contiguous uint8 of shape (N, C, H, W), values float32 of shape (N, features) or of four "
                "dimensions and more, texts strings of shape (N,), their words int32 of shape (N, length) with a "
                "vocabulary"
            )
        check_labels(f"data set '{self.name}'", self.labels, len(self.inputs), self.classes)

    @property
    def kind(self) -> Kind:
        if self.vocabulary is not None:
            return "words"
        if self.inputs.dtype.kind == "U":
            return "text"
        return "image" if self.inputs.dtype == np.uint8 else "values"

    @property
    def form(self) -> Form:
        """What one of its samples is."""
        return Form(self.kind, tuple(self.inputs.shape[1:]), self.vocabulary, self.columns, self.scale)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample, for a model."""
        return self.form.model_shape

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self.labels)

    def drawn(self, samples: int, seed: int) -> Self:
        """So many of its samples, drawn from the seed's stream, with the classes as frequent as in the whole set."""
        if samples > len(self):
            raise DataError(f"samples is {samples:,}, but data set '{self.name}' has {len(self):,}; use fewer or all")
        rng = stream(seed, "samples")
        have = np.bincount(self.labels, minlength=self.classes)
        [places] = deal(self.labels, apportion(np.array([samples]), have[None], rng), rng)
        note = _together(self.note, f"{samples:,} of its {len(self):,} samples")
        return replace(self, inputs=self.inputs[places], labels=self.labels[places], note=note)

    def in_words(self, known: Indices, vocabulary: int, length: int) -> Self:
        """Texts as numbers of words: those are known that are among the most frequent in the `known` samples.

        With the clients' training samples there, no word is known for being in data that anything is chosen by or
        tested on. One vocabulary for all clients presumes that they add up their counts of words before the first
        round (a secure sum would do, and it is not in the ledger); nothing of it depends on who has which text.
        """
        words = Vocabulary.of(self.inputs[known].tolist(), vocabulary)
        known_words = f"{len(words.words):,} words known from training data"
        note = _together(self.note, f"the first {length:,} words of each text, {known_words}")
        return replace(self, inputs=words.encode(self.inputs.tolist(), length), vocabulary=words, note=note)

    def on_one_scale(self, owned: Sequence[Indices]) -> Self:
        """A table whose columns models get with mean 0 and spread 1, over these samples of every client together.

        With the clients' training samples there, nothing that is tested on plays a part. It presumes that clients add
        up the sums and squares of their columns before the first round, as they do with the counts of words.
        """
        scale = Scale.of(Sums.of(self.inputs[own]) for own in owned)
        return replace(self, scale=scale, note=_together(self.note, "columns on one scale, from training data"))


def load(name: str, data_dir: Path | str | None = None, download: bool = False) -> Dataset:
    """The set of that name from the data folder (or $FEDEXPERTS_DATA), in the first form found there.

    With `download` a set that is not there is fetched from the Hugging Face hub and kept in the folder. The name of a
    .csv or .jsonl file in the folder is a set too: texts with labels.
    """
    if is_own(name):
        path = Path(data_dir or "", name)
        texts, labels, class_names = own.read(path)
        return Dataset(path.stem, np.array(texts), labels, class_names, f"from {path}")
    info = find(name)
    if info.name == "digits":
        return _digits(info)
    folder = _folder(info, data_dir, download)
    for read in (plain.read, publisher.read, hub.read):
        if found := read(folder, info):
            return _pooled(info, found)
    if not download:
        raise DataError(_missing(info, folder))
    found = hub.download(info)
    dataset = _pooled(info, found)
    plain.write(folder, info, found)
    return dataset


def is_own(name: str) -> bool:
    """Whether this is the name of a file of the user's own, not of a known set."""
    return Path(name).suffix.lower() in own.FORMS


def is_text(name: str) -> bool:
    """Whether the set of that name is one of texts, as far as its name tells."""
    return is_own(name) or find(name).shape is None


def _digits(info: SetInfo) -> Dataset:
    from sklearn.datasets import load_digits  # slow to import, and most runs use other data

    digits = load_digits()
    values = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # published as 0…16
    return Dataset(info.name, values[:, None], digits.target.astype(np.int64), info.names, "embedded in scikit-learn")


def _folder(info: SetInfo, data_dir: Path | str | None, create: bool) -> Path:
    named = data_dir or os.environ.get(FOLDER_VARIABLE)
    if not named:
        raise DataError(
            f"{info.title} is read from files: name their folder (data_dir), or set {FOLDER_VARIABLE}; "
            "the set 'digits' needs no files"
        )
    folder = Path(named).expanduser()
    if not folder.is_dir() and not (create and not folder.exists()):
        raise DataError(f"the data folder {folder} {'is not a folder' if folder.exists() else 'does not exist'}")
    return folder


def _missing(info: SetInfo, folder: Path) -> str:
    places = " or ".join("the folder itself" if place == "." else f"{place}/" for place in info.folders)
    return (
        f"no files of {info.title} in {folder}. Any of these would do:\n"
        f"  {info.stem}.npz with {', '.join(plain.keys(info))}\n"
        f"  {', '.join(info.files)} as published, in {places}\n"
        f"  {', '.join(hub.patterns(info))} as on huggingface.co/datasets/{info.hub}\n"
        f"or fetch it from there with --download"
    )


def _pooled(info: SetInfo, found: Found) -> Dataset:
    """Train and test as one: each client splits its own share again."""
    inputs, labels = zip(*(checked(part, info) for part in found.parts), strict=True)
    _check_together(info, found, inputs, labels)
    samples, rest = sum(len(part) for part in inputs), inputs[0].shape[1:]
    # A result of concatenate alone would keep the order N×H×W×C in memory
    out = np.empty((samples, *rest), np.result_type(*inputs))
    notes = [f"from {found.source}", found.note]
    if samples != info.samples:
        notes.append(f"{samples:,} samples, published are {info.samples:,}")
    if info.shape not in (None, rest):
        notes.append(f"images of {rest[1]}×{rest[2]}, published are {info.shape[1]}×{info.shape[2]}")
    return Dataset(
        info.name,
        np.concatenate(inputs, out=out),
        np.concatenate(labels),
        found.class_names,
        _together(*notes),
    )


def _together(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _check_together(info: SetInfo, found: Found, inputs: tuple[Array, ...], labels: tuple[Indices, ...]) -> None:
    """What no part shows alone."""
    if len(found.class_names) != info.classes:
        raise DataError(f"{found.source} names {len(found.class_names)} classes; {info.title} has {info.classes}")
    if len({part.shape[1:] for part in inputs}) > 1:
        raise DataError(f"{found.source} has images of different sizes in its parts")
    for other in known().values():
        start = other.first_labels
        if start and other is not info and np.array_equal(labels[0][: len(start)], start):
            # MNIST and Fashion-MNIST come in files of the same names
            raise DataError(f"{found.source} holds {other.title}, not {info.title}: its labels begin {start}")
