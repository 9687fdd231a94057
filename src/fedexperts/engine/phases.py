"""Where the time of a run goes: its work has names, and a profile, where one is switched on, adds them up.

Every moment belongs to the innermost phase, so that the parts sum to the whole. On CUDA the host only queues work, and
waits for all of it where a result is read; the device's own time is measured by events in its queue.
"""

import os
from contextlib import ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Literal, Self, get_args

import torch
from torch.profiler import ProfilerActivity, profile, record_function

Phase = Literal["training", "evaluation", "aggregation", "data", "saving", "waiting", "other"]
PHASES: tuple[Phase, ...] = get_args(Phase)
TRACE = "trace.json"
"""In a run's folder: what Perfetto opens."""
TRACED = 2
"""Rounds in a trace, which grows with every operation; the first, which warms up, only if there is no other."""


class phase(ContextDecorator):  # noqa: N801 - reads like a word
    """What is done within it, or in the function below it, is of this phase. Without a profile it does nothing."""

    def __init__(self, name: Phase) -> None:
        self.name = name

    def __enter__(self) -> None:
        if (watching := _watching.get()) is not None:
            watching.enter(self.name)

    def __exit__(self, *_: object) -> None:
        if (watching := _watching.get()) is not None:
            watching.leave()


@dataclass
class Spent:
    """The seconds of each phase in some rounds."""

    rounds: int
    host: dict[str, float]
    device: dict[str, float]  # until a GPU had done what the phase gave it to do; empty where there is none


class Profile:
    """Within it phases are noted, and a few rounds traced: of this thread, in whose phases others help."""

    def __init__(self, device: torch.device, rounds: int, path: Path | None) -> None:
        """`rounds`: how many there will be, at least one; `path`: where the trace goes, if it is to be kept."""
        on_cuda = device.type == "cuda"
        self.spent = Spent(0, dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0) if on_cuda else {})
        first = min(1, rounds - 1)
        self._traced = range(first, first + TRACED)
        self._kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_cuda]
        self._path = path
        self._trace: profile | None = None
        self._open: list[tuple[Phase, record_function]] = []
        self._marks: list[tuple[Phase, torch.cuda.Event]] = []  # in the GPU's queue: what came before each

    def __enter__(self) -> Self:
        self._token = _watching.set(self)
        self._follow()
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._note("other")
        _watching.reset(self._token)
        self._read()
        self._end_trace()

    def enter(self, name: Phase) -> None:
        """From now on it is this phase."""
        self._note(self._now)
        self._open.append((name, record_function(name)))
        self._open[-1][1].__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """It is the phase around this one again."""
        self._note(self._now)
        self._open.pop()[1].__exit__(None, None, None)

    def ended(self) -> None:
        """A round is over."""
        self.spent.rounds += 1
        self._note("other")
        self._read()
        self._follow()
        self._begin()

    @property
    def _now(self) -> Phase:
        return self._open[-1][0] if self._open else "other"

    def _begin(self) -> None:
        """What was before is nobody's: the profile's own."""
        self._since = perf_counter()
        self._marks.clear()
        self._mark("other")

    def _note(self, name: Phase) -> None:
        """Everything since the last time was this."""
        now = perf_counter()
        self.spent.host[name] += now - self._since
        self._since = now
        self._mark(name)

    def _mark(self, name: Phase) -> None:
        if self.spent.device:
            self._marks.append((name, torch.cuda.Event(enable_timing=True)))  # type: ignore[no-untyped-call]
            self._marks[-1][1].record()

    def _read(self) -> None:
        """Wait for the GPU to come to the last mark, and see when it came to the others."""
        if self._marks:
            self._marks[-1][1].synchronize()
        for (_, before), (name, after) in pairwise(self._marks):
            self.spent.device[name] += before.elapsed_time(after) / 1e3

    def _follow(self) -> None:
        """Trace the next round, if it is one of those; when they are over, write the file."""
        if self.spent.rounds not in self._traced:
            self._end_trace()
        elif self._path is not None and self._trace is None:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would write of every start and stop
            self._trace = profile(activities=self._kinds, acc_events=True)
            self._trace.start()

    def _end_trace(self) -> None:
        if self._trace is not None:
            self._trace.stop()
            self._trace.export_chrome_trace(str(self._path))
            self._trace = None


_watching: ContextVar[Profile | None] = ContextVar("watching", default=None)
