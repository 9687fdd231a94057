"""Writing files so that a crash at any moment leaves the old one or the new one, never half of one."""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file by a new one; safely on disk when this returns."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    bring_to_disk(path.parent)


def bring_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are safely on disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
