"""What torchrun says of this process, where it started several for one run. Asked without importing torch."""

import os


def rank() -> int:
    """Which of them this is."""
    return int(os.environ.get("RANK", 0)) if size() > 1 else 0


def size() -> int:
    """How many there are, on all machines; 1 for a process that nobody started so."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1


def leads() -> bool:
    """Whether this is the one that writes and prints."""
    return rank() == 0


def local_rank() -> int:
    """Which of those on this machine this is."""
    return int(os.environ.get("LOCAL_RANK", 0))


def local_size() -> int:
    """How many there are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if size() > 1 else 1
