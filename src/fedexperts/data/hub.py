"""Copies from the Hugging Face hub (extra `hub`): downloaded when asked, or found in the data folder."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedexperts.data import pictures
from fedexperts.data.parts import Found, Part, reading
from fedexperts.data.registry import SetInfo
from fedexperts.errors import DataError


@dataclass(frozen=True)
class _Copy:
    """How the hub's copy of a set differs from the others."""

    folder: str
    """Where its parquet files lie in its repository."""
    inputs: str = "image"
    labels: str = "label"
    splits: tuple[str, str] = ("train", "test")
    config: str | None = None
    transposed: bool = False


_COPIES = {
    "mnist": _Copy("mnist"),
    "fashion-mnist": _Copy("fashion_mnist"),
    "emnist": _Copy("emnist-letters", transposed=True),
    "cifar10": _Copy("plain_text", inputs="img"),
    "cifar100": _Copy("cifar100", inputs="img", labels="fine_label"),
    "svhn": _Copy("cropped_digits", config="cropped_digits"),
    "tiny-imagenet": _Copy("data", splits=("train", "valid")),
    "ag-news": _Copy("data", inputs="text"),
}


def patterns(info: SetInfo) -> tuple[str, ...]:
    """The files of a local copy, as shown to the user."""
    return tuple(f"{info.stem}/{split}-*.parquet" for split in _COPIES[info.name].splits)


def read(folder: Path, info: SetInfo) -> Found | None:
    """A local copy in the hub's layout, from the first place that has any of its files."""
    copy = _COPIES[info.name]
    for place in _places(folder, info, copy):
        files = {split: sorted(place.glob(f"{split}-*.parquet")) for split in copy.splits}
        if not any(files.values()):
            continue
        if missing := [f"{split}-*.parquet" for split, paths in files.items() if not paths]:
            raise DataError(f"{place} has a part of {info.title} but lacks {', '.join(missing)}")
        datasets = _library(f"reading {place}/*.parquet")
        # The library copies what it reads into a cache; nobody needs that afterwards
        with TemporaryDirectory() as cache, reading(place, "parquet files of the Hugging Face hub"):
            return _found(
                str(place),
                {
                    split: datasets.Dataset.from_parquet(
                        [str(path) for path in paths], cache_dir=cache, keep_in_memory=True
                    )
                    for split, paths in files.items()
                },
                info,
            )
    return None


def _places(folder: Path, info: SetInfo, copy: _Copy) -> Iterator[Path]:
    # The set's own folders come before the data folder itself, which may hold other sets
    for name in dict.fromkeys((info.stem, info.name, info.hub, info.hub.partition("/")[2], ".")):
        for inner in dict.fromkeys((".", "data", copy.folder)):
            yield folder / name / inner


def download(info: SetInfo) -> Found:
    """The set from the hub itself."""
    datasets = _library(f"downloading {info.title}")
    where = f"huggingface.co/datasets/{info.hub}"
    with TemporaryDirectory() as cache:
        try:
            splits = datasets.load_dataset(info.hub, _COPIES[info.name].config, cache_dir=cache, keep_in_memory=True)
        except Exception as error:  # no network, a moved repository, a full disk …
            raise DataError(
                f"{info.title} could not be downloaded from {where} ({type(error).__name__}: {error}); "
                "check the network, or fetch its files elsewhere and put them into the data folder"
            ) from error
        with reading(where, "a copy of the set"):
            return _found(where, splits, info)


def _library(purpose: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError(f"{purpose} needs the Hugging Face library 'datasets': pip install 'fedexperts[hub]'") from None
    return datasets


def _found(where: str, splits: Any, info: SetInfo) -> Found:
    copy = _COPIES[info.name]
    parts = tuple(_part(f"{where}, {split}", splits[split], info, copy) for split in copy.splits)
    labels = splits[copy.splits[0]].features[copy.labels]
    return Found(where, parts, tuple(getattr(labels, "names", None) or info.names))


def _part(where: str, split: Any, info: SetInfo, copy: _Copy) -> Part:
    if missing := [name for name in (copy.inputs, copy.labels) if name not in split.column_names]:
        raise DataError(f"{where} lacks the column {', '.join(missing)}; it has {', '.join(split.column_names)}")
    labels = np.array(list(split[copy.labels]))
    if info.shape is None:
        return Part(where, np.array(list(split[copy.inputs])), labels)
    pixels = pictures.decode(_encoded(where, split, copy), info)
    return Part(where, pixels.swapaxes(1, 2) if copy.transposed else pixels, labels)


def _encoded(where: str, split: Any, copy: _Copy) -> list[tuple[str, io.BytesIO]]:
    from datasets import Image

    cells = split.cast_column(copy.inputs, Image(decode=False))[copy.inputs]
    return [(f"{where}, row {row}", io.BytesIO(cell["bytes"])) for row, cell in enumerate(cells)]
