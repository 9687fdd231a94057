"""Folders of the user's own: one client's data, or a folder with one such folder for every client.

`NAME/train` and `NAME/test`, each as `.npz` (arrays x and y), `.csv` or `.jsonl` (texts with labels), `.csv` (a table
of numbers with labels), or a folder of pictures with a folder for each class.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedexperts.data import own, pictures
from fedexperts.data.form import Form
from fedexperts.data.parts import Array, reading
from fedexperts.data.samples import Samples
from fedexperts.errors import DataError

SPLITS = ("train", "test")
SUFFIXES = (".npz", *own.FORMS, "")
"""How a split may be called, after its name; a folder has no suffix."""


def is_folder(name: str) -> bool:
    """Whether a data set's name means a folder of clients."""
    return name.endswith("/")


def clients_in(folder: Path) -> list[Path]:
    """The folders of a folder's clients, by name."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; expected {folder}/NAME/train and test for every client NAME")
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if any(path.name in SPLITS for path in found) or any((folder / f"train{suffix}").is_file() for suffix in SUFFIXES):
        raise DataError(f"{folder} is one client's folder; give the folder around it, which has one for every client")
    if not found:
        raise DataError(f"{folder} has no folders in it; expected {folder}/NAME/train and test for every client NAME")
    return found


def read_client(folder: Path, image_size: int | None = None) -> tuple[Samples, Samples]:
    """One client's samples, for training and for testing; the client is called as its folder."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; expected train and test in it")
    train, test = (
        read_samples(_place(folder, split), f"client {folder.name}, {split}", image_size) for split in SPLITS
    )
    return train, test


def _place(folder: Path, split: str) -> Path:
    """The file or folder that a split is in."""
    found = [path for suffix in SUFFIXES if (path := folder / f"{split}{suffix}").exists()]
    if not found:
        raise DataError(
            f"client {folder.name} has no {split} data: {folder} should hold {split}.npz, {split}.csv, {split}.jsonl, "
            f"or a folder {split}/ with a folder of pictures for each class"
        )
    if len(found) > 1:
        both = " and ".join(path.name for path in found)
        raise DataError(f"client {folder.name} has {both} in {folder}; leave one, it is not clear which counts")
    return found[0]


def read_samples(path: Path, where: str, image_size: int | None = None) -> Samples:
    """Samples with labels from a file, or from a folder of pictures."""
    if path.is_dir():
        return _class_folders(path, where, image_size)
    inputs: Any
    labels: Any
    columns: tuple[str, ...] = ()
    if path.suffix == ".npz":
        inputs, labels = _arrays(path, ("x", "y"))
    elif own.has_texts(path):
        inputs, labels = own.read_texts(path)
    else:
        inputs, labels, columns = own.read_table(path)
    if not len(labels):
        raise DataError(f"{where}: {path} holds no samples")
    found = Samples.of((inputs, labels), f"{where} ({path})")
    return Samples(where, found.inputs, found.labels, columns=columns)


def _class_folders(folder: Path, where: str, image_size: int | None) -> Samples:
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = [(path, one.name) for one in classes for path in pictures.in_folder(one)]
    if not files:
        raise DataError(
            f"{where}: no pictures in {folder}; expected {folder}/CLASS/*.png (or {', '.join(pictures.SUFFIXES[1:])})"
        )
    pixels = pictures.read_own([path for path, _ in files], image_size)
    return Samples(where, pixels, np.array([name for _, name in files]), tuple(one.name for one in classes))


def _arrays(path: Path, keys: Sequence[str]) -> list[Array]:
    with reading(path, "an .npz file"), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if missing := [key for key in keys if key not in archive.files]:
            raise DataError(f"{path} lacks {' and '.join(missing)}; it holds {', '.join(archive.files) or 'nothing'}")
        return [archive[key] for key in keys]


def read_inputs(path: Path, form: Form) -> tuple[list[str], Array]:
    """Samples without labels, of a form that models are there for, each with a name: its file, or its number from 0.

    From .npz (an array x), .npy, .csv, .jsonl, a picture, or a folder of pictures, which are made of the models'
    size where that is a square. Labels are not read.
    """
    if not path.exists():
        raise DataError(f"there is no file {path}")
    names: list[str] = []
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in pictures.SUFFIXES:
        files = sorted(pictures.in_folder(path)) if path.is_dir() else [path]
        if not files:
            raise DataError(f"there are no pictures in {path}")
        names = [file.name for file in files]
        channels, *sides = form.shape if form.kind == "image" else (None,)
        inputs = pictures.read_own(files, sides[0] if sides and sides[0] == sides[1] else None, channels)
    elif suffix == ".npz":
        [inputs] = _arrays(path, ("x",))
    elif suffix == ".npy":
        with reading(path, "an .npy file"):
            inputs = np.load(path, allow_pickle=False)
    elif suffix in own.FORMS and own.has_texts(path):
        inputs = np.array(own.read_texts(path, labelled=False)[0])
    elif suffix == ".csv":
        inputs, _, columns = own.read_table(path, labelled=False)
        inputs = in_order(inputs, columns, form.columns, str(path))
    else:
        raise DataError(f"{path} is none of .npz, .npy, .csv, .jsonl, a picture, a folder of pictures")
    try:
        taken = form.take(inputs)
    except DataError as error:
        raise DataError(f"{path}: the model takes {error}") from None
    return names or [str(number) for number in range(len(taken))], taken


def in_order(values: Array, columns: tuple[str, ...], wanted: tuple[str, ...], where: str) -> Array:
    """A table's features in the order of another's, by their names."""
    if columns == wanted or not wanted:
        return values
    for here, there, what in ((wanted, columns, "lacks"), (columns, wanted, "has")):
        if other := [name for name in here if name not in there]:
            known = "is not among" if what == "has" else "is one of"
            raise DataError(f"{where} {what} the column '{other[0]}', which {known} the features: {', '.join(wanted)}")
    return values[:, [columns.index(name) for name in wanted]]
