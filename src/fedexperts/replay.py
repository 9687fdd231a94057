"""Work that is done again and again as CUDA graphs: eagerly at first, then captured, from then on one launch.

What it reads and writes must lie where it lay when it was captured. Nothing here is federated.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

WARM_UP = 2
"""Eager steps before a graph is captured."""

SHORT = ("can't allocate memory", "out of memory", "ALLOC_FAILED")
"""How those say it who have no class for it: torch on a CPU; CUDA itself, when it makes or starts a graph; cuBLAS."""

log = logging.getLogger(__name__)


def ran_out(error: BaseException | None) -> bool:
    """Whether an error means that memory was short; a capture that is broken off by it has one of its own."""
    if error is None:
        return False
    said = isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in SHORT)
    return said or ran_out(error.__context__)


def give_back() -> None:
    """Memory that nothing needs any more, of a GPU too: others may want it. A run that is over is a circle."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


class Pool:
    """Memory for what captured work makes on its way, shared by graphs that never run side by side."""

    def __init__(self) -> None:
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    @property
    def handle(self) -> "_POOL_HANDLE":
        """That of the graphs that live: torch ends a pool with the last of them, and does not begin it again."""
        for graph in self._graphs:
            return graph.pool()
        return torch.cuda.graph_pool_handle()

    @contextmanager
    def capturing(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """What is queued within it becomes the graph. What fails there is raised, not what the capture's end says then.

        Not `torch.cuda.graph(…)`: it empties the allocator's cache each time, and there are many graphs.
        """
        handle = self.handle
        try:
            graph.capture_begin(pool=handle)
            yield
        except BaseException:
            with suppress(RuntimeError):
                self._end(graph, handle)
            raise
        self._end(graph, handle)
        self._graphs.add(graph)

    def _end(self, graph: torch.cuda.CUDAGraph, handle: "_POOL_HANDLE") -> None:
        try:
            graph.capture_end()
        except RuntimeError:
            self._graphs = WeakSet()  # torch begins no other capture with this pool
            with suppress(RuntimeError):  # before 2.12 it believes for good that this one goes on (pytorch#180395)
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), handle)
            raise


class Replay:
    """A piece of work that is done eagerly at first, then captured, and from then on one launch."""

    def __init__(self, work: Callable[[], None], pool: Pool, what: str) -> None:
        self.work = work
        self.pool = pool
        self.what = what
        self.graph: torch.cuda.CUDAGraph | None = None
        self._eager = 0

    def __call__(self) -> None:
        if self.graph is None and self._eager == WARM_UP:
            self.graph = self._captured()
        if self.graph is not None:
            self.graph.replay()
            return
        self.work()
        self._eager += 1

    def close(self) -> None:
        """Give its memory back now: work knows whose it is, a circle that would wait for the garbage collector."""
        self.work, self.graph = _nothing, None

    def _captured(self, again: bool = True) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with _garbage_kept(), self.pool.capturing(graph):
                self.work()
        except Exception as error:  # what fails without a graph too does so again at once
            if not ran_out(error):  # slower without, but right
                log.warning("%s run without a CUDA graph: %s", self.what, error)
                return None
            if not again:
                raise
        else:
            return graph
        del graph
        torch.cuda.empty_cache()  # what eager steps have left there cannot be given back while something is captured
        return self._captured(again=False)


def _nothing() -> None:
    pass


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Nothing is collected meanwhile: a graph of an earlier run that is freed during a capture spoils it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Aside:
    """A stream for work that a method repeats, and memory that the graphs of one use leave to those of the next."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = Pool()
        self._last: list[torch.cuda.CUDAGraph | None] = []

    @contextmanager
    def replays(self, works: Sequence[Callable[[], None]], what: str) -> Iterator[Sequence[Callable[[], None]]]:
        """The works, to be repeated within it, one after another in any order."""
        main = torch.cuda.current_stream()
        replays = [Replay(work, self._pool, what) for work in works]
        self._stream.wait_stream(main)
        try:
            with torch.cuda.stream(self._stream):
                yield replays
        finally:
            main.wait_stream(self._stream)
            self._last = [replay.graph for replay in replays]  # a pool lives as long as one of its graphs
            for replay in replays:
                replay.close()


@cache
def aside(device: torch.device) -> Aside:
    """That of a GPU."""
    with torch.cuda.device(device):
        return Aside()
