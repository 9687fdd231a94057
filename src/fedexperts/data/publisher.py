"""The publishers' own files: IDX (MNIST and its kin), CIFAR, SVHN, Tiny-ImageNet, AG News."""

import csv
import gzip
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

import numpy as np

from fedexperts.data import cifar, pictures
from fedexperts.data.parts import Array, Found, Part, reading
from fedexperts.data.registry import SetInfo
from fedexperts.errors import DataError

Files = Mapping[str, Path]
"""Where each of `SetInfo.files` lies."""


def read(folder: Path, info: SetInfo) -> Found | None:
    """The set from its publisher's files, from the first of its folders that has any of them."""
    for place in info.folders:
        files = {name: path for name in info.files if (path := _file(folder / place, name))}
        if missing := [name for name in info.files if name not in files]:
            if not files:
                continue
            raise DataError(
                f"{folder / place} has {', '.join(files)} of {info.title} but lacks {', '.join(missing)}; "
                f"all of {', '.join(info.files)} are needed"
            )
        return _READERS[info.name](files, info)
    return None


def _file(place: Path, name: str) -> Path | None:
    variants = [name]
    if "-idx" in name:
        variants = [form + end for form in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
    return next((place / variant for variant in variants if (place / variant).exists()), None)


def _read_idx(files: Files, info: SetInfo) -> Found:
    letters = info.name == "emnist"  # stored column by column, and counted from 1
    paths = [files[name] for name in info.files]
    parts = []
    for images, labels in (paths[:2], paths[2:]):
        pixels = _idx(images, 3)
        pixels = pixels.transpose(0, 2, 1) if letters else pixels
        parts.append(Part(f"{images} with {labels.name}", pixels, _idx(labels, 1), first=int(letters)))
    return Found(str(paths[0].parent), tuple(parts), info.names)


def _idx(path: Path, dimensions: int) -> Array:
    """An IDX file: two zeros, type 8 (unsigned byte), the dimensions as big-endian numbers, the values."""
    with reading(path, "an IDX file"), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        raw = file.read()
        if raw[:4] != bytes((0, 0, 8, dimensions)):
            raise DataError(f"{path} is no IDX file of unsigned bytes with {dimensions} dimensions")
        start = 4 + 4 * dimensions
        shape = tuple(np.frombuffer(raw[4:start], ">u4").tolist())
        if prod(shape) != len(raw) - start:
            raise DataError(f"{path} announces {prod(shape):,} values but holds {len(raw) - start:,}; is it truncated?")
        return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _read_svhn(files: Files, info: SetInfo) -> Found:
    from scipy.io import loadmat  # here, because it takes a while to import and no other set needs it

    parts = []
    for path in files.values():
        with reading(path, "a MATLAB file with X and y"):
            arrays = loadmat(path, variable_names=["X", "y"])
            labels = arrays["y"].ravel()
            parts.append(Part(str(path), np.moveaxis(arrays["X"], -1, 0), np.where(labels == 10, 0, labels)))
    return Found(str(path.parent), tuple(parts), info.names)


def _read_news(files: Files, info: SetInfo) -> Found:
    return Found(str(files["train.csv"].parent), tuple(_news(path) for path in files.values()), info.names)


def _news(path: Path) -> Part:
    texts, labels = [], []
    with reading(path, "a CSV file"), path.open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        for row in lines:
            if len(row) != 3 or not row[0].isdecimal():
                if lines.line_num == 1 and row[:1] == ["Class Index"]:
                    continue  # a widespread copy has a header
                raise DataError(f"{path}, line {lines.line_num}: expected class, title, description, found {row!r:.80}")
            labels.append(int(row[0]))
            texts.append(f"{row[1]} {row[2]}".strip())
    return Part(str(path), np.array(texts, dtype=np.str_), np.array(labels, dtype=np.int64), first=1)


def _read_tiny(files: Files, info: SetInfo) -> Found:
    return pictures.read_folder(files["train"].parent, info)


_READERS: dict[str, Callable[[Files, SetInfo], Found]] = {
    "mnist": _read_idx,
    "fashion-mnist": _read_idx,
    "emnist": _read_idx,
    "cifar10": cifar.read,
    "cifar100": cifar.read,
    "svhn": _read_svhn,
    "tiny-imagenet": _read_tiny,
    "ag-news": _read_news,
}
