"""One stream of random numbers per (seed, purpose, who, when).

A stream depends on nothing else: not on the order in which clients train, on how many train at once, or on who
else was sampled. So a result can be repeated, resumed and compared across executors and machines.
"""

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_ONE_AT_A_TIME = threading.RLock()
SERVER = 2**31
"""Stands in for a client's number in the streams of the server."""


def stream(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """The stream for a purpose ("batches", "sampling" …) at a place, usually (client, round)."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), *where)))


@contextmanager
def torch_stream(seed: int, purpose: str, *where: int) -> Iterator[None]:
    """Within the block torch's own generator (initialisers of layers use it) is that stream.

    There is one generator for all threads: others wait for the end of the block.
    """
    import torch

    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(stream(seed, purpose, *where).integers(2**63)))
        yield
