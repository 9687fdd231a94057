"""Pictures in files (JPEG, PNG …), which need Pillow: the extra `images`."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedexperts.data.parts import Array, Found, Part, reading
from fedexperts.data.registry import SetInfo
from fedexperts.errors import DataError


def decode(pictures: Sequence[tuple[str, Path | BinaryIO]], info: SetInfo) -> Array:
    """Pictures, each with a name for errors, as N×H×W×C. They must have the set's own size."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"the pictures of {info.title} need Pillow: pip install 'fedexperts[images]'") from None
    channels, height, width = info.shape or (0, 0, 0)
    values = np.empty((len(pictures), height, width, channels), np.uint8)
    for row, (where, source) in enumerate(pictures):
        with reading(where, "a picture"), Image.open(source) as image:
            if image.size != (width, height):
                raise DataError(f"{where} is {image.width}×{image.height}; {info.name} is {width}×{height}")
            # A few pictures of the coloured sets are grey
            values[row] = np.asarray(image.convert("RGB" if channels == 3 else "L")).reshape(values.shape[1:])
    return values


def read_folder(root: Path, info: SetInfo) -> Found:
    """Tiny-ImageNet as unpacked: train/WNID/images/*.JPEG, val/images/*.JPEG with val/val_annotations.txt."""
    wnids = sorted(path.name for path in (root / "train").iterdir() if path.is_dir())
    if len(wnids) != info.classes:
        raise DataError(f"{root / 'train'} has {len(wnids)} class folders; {info.title} has {info.classes}")
    number = {wnid: i for i, wnid in enumerate(wnids)}
    train = [(path, wnid) for wnid in wnids for path in sorted((root / "train" / wnid / "images").glob("*.JPEG"))]
    if empty := sorted(set(wnids) - {wnid for _, wnid in train}):
        raise DataError(f"{root / 'train' / empty[0] / 'images'} holds no .JPEG pictures")

    annotations = root / "val" / "val_annotations.txt"
    validation = []
    with reading(annotations, "a table of pictures and classes"):
        for line, text in enumerate(annotations.read_text(encoding="utf-8").splitlines(), 1):
            fields = text.split("\t")
            if len(fields) < 2 or fields[1] not in number:
                raise DataError(f"{annotations}, line {line}: expected a picture and one of the classes in train/")
            validation.append((root / "val" / "images" / fields[0], fields[1]))

    parts = []
    for where, split in ((root / "train", train), (annotations, validation)):
        pixels = decode([(str(path), path) for path, _ in split], info)
        parts.append(Part(str(where), pixels, np.array([number[wnid] for _, wnid in split], np.int64)))
    words = _words(root / "words.txt")
    return Found(str(root), tuple(parts), tuple(words.get(wnid, wnid) for wnid in wnids))


def _words(path: Path) -> dict[str, str]:
    """The classes' English names; without the file their numbers have to do."""
    if not path.is_file():
        return {}
    with reading(path, "a table of class names"):
        lines = path.read_text(encoding="utf-8").splitlines()
        return {wnid: words for wnid, _, words in (line.partition("\t") for line in lines)}
