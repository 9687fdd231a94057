"""Pictures in files (JPEG, PNG …), which need Pillow: the extra `images`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedexperts.data.parts import Array, Found, Part, reading
from fedexperts.data.registry import SetInfo
from fedexperts.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""Files of these names are pictures."""
GREY = ("1", "L", "LA")
EIGHT_BIT = (*GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""Pillow's modes of pictures that have a byte per channel."""


def _pillow(what: str) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{what} need Pillow: pip install 'fedexperts[images]'") from None
    return Image


def in_folder(folder: Path) -> list[Path]:
    """The pictures in a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def read_own(paths: Sequence[Path], size: int | None = None, channels: int | None = None) -> Array:
    """Pictures of the user's own as N×C×H×W: grey if all are, else coloured; all of one size, or made size×size."""
    image_module = _pillow("pictures")
    found: list[Any] = []
    for path in paths:
        with reading(path, "a picture"), image_module.open(path) as image:
            if image.mode not in EIGHT_BIT:
                raise DataError(
                    f"{path} has more than a byte per channel (mode {image.mode}); save it with 8 bits, or give arrays "
                    "(.npz) that are scaled as you want them"
                )
            if size is not None:
                image = image.convert("L" if image.mode in GREY else "RGB").resize((size, size))
            if found and image.size != found[0].size:
                (w, h), (width, height) = image.size, found[0].size
                raise DataError(
                    f"{path} is {w}×{h}, {paths[0]} {width}×{height}; give --image-size, for instance "
                    f"{min(w, h, width, height)}, and all are made of that size"
                )
            found.append(image.copy())
    grey = channels == 1 or (channels is None and all(image.mode in GREY for image in found))
    pixels = np.stack([np.asarray(image.convert("L" if grey else "RGB")) for image in found])
    return np.ascontiguousarray(pixels[:, None] if grey else np.moveaxis(pixels, 3, 1))


def decode(pictures: Sequence[tuple[str, Path | BinaryIO]], info: SetInfo) -> Array:
    """Pictures, each with a name for errors, as N×H×W×C. They must have the set's own size."""
    image_module = _pillow(f"the pictures of {info.title}")
    channels, height, width = info.shape or (0, 0, 0)
    values = np.empty((len(pictures), height, width, channels), np.uint8)
    for row, (where, source) in enumerate(pictures):
        with reading(where, "a picture"), image_module.open(source) as image:
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
