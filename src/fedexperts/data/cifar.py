"""CIFAR's publisher files are pickles. They are opened without letting them run anything.

Not even numpy's own constructors are called for them: a crafted array type could break those. Stand-ins take
the constructors' places, and only plain arrays of bytes come out.
"""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedexperts.data.parts import Array, Found, Part, reading
from fedexperts.data.registry import SetInfo


class _Type:
    """Stands in for numpy.dtype."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, _: Any) -> None:
        """Byte order and the like, which single bytes do not have."""


class _Values:
    """Stands in for numpy.ndarray and the function that makes one."""

    state: Any = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> Array:
        _, shape, kind, by_columns, raw = self.state
        if kind.code not in (b"u1", "u1"):
            raise ValueError(f"values of type {kind.code!r} instead of bytes")
        return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Values,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _Values,
    ("numpy._core.multiarray", "_reconstruct"): _Values,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs") from None


def _unpickle(path: Path) -> dict[str, Any]:
    content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    return {_text(key): value for key, value in content.items()}


def _text(value: bytes | str) -> str:
    """Python 2 wrote text as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def read(files: Mapping[str, Path], info: SetInfo) -> Found:
    """CIFAR-10 and CIFAR-100 (its 100 fine classes) from the Python batches."""
    kind = "fine_label" if info.name == "cifar100" else "label"
    *batches, meta = files.values()
    with reading(meta, "CIFAR's class names"):
        class_names = tuple(_text(name) for name in _unpickle(meta)[f"{kind}_names"])
    return Found(str(meta.parent), tuple(_batch(path, f"{kind}s", info) for path in batches), class_names)


def _batch(path: Path, key: str, info: SetInfo) -> Part:
    with reading(path, "a CIFAR batch"):
        content = _unpickle(path)
        pixels = content["data"].array().reshape(-1, *(info.shape or ()))
        return Part(str(path), np.moveaxis(pixels, 1, -1), np.array(content[key]))
