"""The plain form of a data set: one `.npz` file with x_train, y_train, x_test, y_test (texts: text_…)."""

from pathlib import Path

import numpy as np

from fedexperts.data.parts import Array, Found, Part, reading
from fedexperts.data.registry import SetInfo
from fedexperts.errors import DataError


def keys(info: SetInfo) -> tuple[str, str, str, str]:
    """The arrays that the file must hold; `class_names` and a `note` on its origin may be there too."""
    kind = "text" if info.shape is None else "x"
    return (f"{kind}_train", "y_train", f"{kind}_test", "y_test")


def read(folder: Path, info: SetInfo) -> Found | None:
    """The set from `STEM.npz`, if that file is there."""
    path = folder / f"{info.stem}.npz"
    if not path.is_file():
        return None
    # numpy does not close a damaged file that it opened itself
    with (
        reading(path, "an .npz file"),
        path.open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        arrays: dict[str, Array] = {
            key: archive[key] for key in (*keys(info), "class_names", "note") if key in archive.files
        }
    if missing := [key for key in keys(info) if key not in arrays]:
        raise DataError(f"{path} lacks {', '.join(missing)}; it should hold {', '.join(keys(info))}")
    names, note = arrays.get("class_names"), arrays.get("note")
    return Found(
        str(path),
        tuple(_part(path, info, arrays, split) for split in ("train", "test")),
        info.names if names is None else tuple(str(name) for name in names.ravel()),
        "" if note is None else str(note),
    )


def _part(path: Path, info: SetInfo, arrays: dict[str, Array], split: str) -> Part:
    inputs, labels = (key for key in keys(info) if key.endswith(split))
    return Part(f"{path} ({inputs}, {labels})", arrays[inputs], arrays[labels])


def write(folder: Path, info: SetInfo, found: Found) -> None:
    """Keep what was found as `STEM.npz`; an interrupted write leaves no half file of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = found.parts
    values = (train.inputs, train.labels - train.first, test.inputs, test.labels - test.first)
    arrays = dict(zip(keys(info), values, strict=True))
    arrays |= {"class_names": np.array(found.class_names), "note": np.array(f"copied from {found.source}")}
    half = folder / f"{info.stem}.part"
    with half.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # mypy fears a key "allow_pickle"
    half.replace(folder / f"{info.stem}.npz")
