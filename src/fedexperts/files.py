"""Writing files so that a crash at any moment leaves the old one or the new one, never half of one."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by new text; safely on disk when this returns."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
