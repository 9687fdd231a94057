"""Passes over data captured as CUDA graphs: what is asked of a stack round after round becomes one launch.

An evaluation is short for a GPU and long for the host, which starts its hundreds of kernels one by one. Each pass has
fixed memory, as training steps have (graphs.py); what may lie elsewhere next time is copied into it.
"""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from fedexperts.engine.cohort import Query, Received
from fedexperts.methods import State
from fedexperts.replay import Pool, Replay

MOST = 128
"""Passes that are kept; the oldest goes when there are more."""

Work = Callable[[State, Received, Tensor], Tensor]
"""(the stack's tensors, what was received, the samples) → something for each sample of each client."""


class PassGraphs:
    """The passes of all stacks. They run one after another, so one stream and one memory are enough for all."""

    def __init__(self) -> None:
        self._passes: dict[Hashable, _Pass] = {}
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = Pool()

    @property
    def replays(self) -> list[Replay]:
        return [one.replay for one in self._passes.values()]

    def clear(self) -> None:
        for replay in self.replays:
            replay.close()
        self._passes.clear()

    def answer(self, query: Query, work: Work) -> Tensor:
        """What `work` gives for a query."""
        main = torch.cuda.current_stream()
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            found = self._pass(query, work)(query)
        main.wait_stream(self._stream)
        found.record_stream(main)
        return found

    def _pass(self, query: Query, work: Work) -> "_Pass":
        key = _shape(query)
        if key not in self._passes:
            while len(self._passes) >= MOST:
                self._passes.pop(next(iter(self._passes))).replay.close()
            self._passes[key] = _Pass(query, work, self._pool)
        return self._passes[key]


class _Pass:
    """One question to one stack, in memory that does not move."""

    def __init__(self, query: Query, work: Work, pool: Pool) -> None:
        still = _still(query)
        self.tensors = {n: t if n in still else torch.empty_like(t) for n, t in query.cohort.tensors.items()}
        self.copied = [name for name in self.tensors if name not in still]
        self.received = query.received.roomy(len(query.cohort))
        self.index = torch.empty_like(query.index)
        self.work = work
        self.found: Tensor | None = None
        self.replay = Replay(self._run, pool, f"passes of {len(query.cohort)} clients")

    def __call__(self, query: Query) -> Tensor:
        for name in self.copied:
            self.tensors[name].copy_(query.cohort.tensors[name])
        for name, target in self.received.tensors.items():
            target.copy_(query.received.tensors[name])
        self.index.copy_(query.index)
        self.replay()
        assert self.found is not None
        return self.found.clone()

    def _run(self) -> None:
        answers = self.work(self.tensors, self.received, self.index)
        if self.found is None:
            self.found = torch.empty_like(answers)
        self.found.copy_(answers)


def _still(query: Query) -> dict[str, int]:
    """The tensors that are where the fleet keeps them from round to round, and where that is."""
    at = {name: buffer.data_ptr() for name, buffer in query.cohort.buffers.items()}
    return {name: at[name] for name, tensor in query.cohort.tensors.items() if tensor.data_ptr() == at.get(name)}


def _shape(query: Query) -> Hashable:
    """What a captured pass is bound to."""
    return (
        query.cohort.program.signature,
        query.function,
        tuple(query.index.shape),
        tuple(_still(query).items()),
        tuple((name, tuple(tensor.shape)) for name, tensor in query.received.tensors.items()),
        query.received.common,
    )
