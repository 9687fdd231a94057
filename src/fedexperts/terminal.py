"""What all commands share: where they print, and which runs are meant."""

from pathlib import Path

from rich.console import Console

console = Console()


def run_folders(folders: list[Path]) -> list[Path]:
    """The runs that are meant: a folder of runs stands for them, files between folders for nothing."""
    found: list[Path] = []
    for folder in folders:
        inner = sorted(path.parent for path in folder.glob("*/settings.toml"))
        if (folder / "settings.toml").exists() or not inner:
            found += [folder] if folder.is_dir() or len(folders) == 1 or not folder.exists() else []
        else:
            found += inner
    return found
