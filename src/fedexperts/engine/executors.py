"""Ways to run cohorts: one client after another, one worker per core, captured steps, or a stack as one program.

All give the same result, to float tolerance. Another way joins by implementing `Executor` and a name in `choosing.py`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedexperts import torchrun
from fedexperts.config import EngineSettings, TrainSettings
from fedexperts.engine.batches import DeviceData
from fedexperts.engine.captured import LoopGraphs
from fedexperts.engine.cohort import Job, Query
from fedexperts.engine.fit import Fit, autocast
from fedexperts.engine.graphs import StepGraphs
from fedexperts.errors import MethodError, SettingsError
from fedexperts.methods import State

QUERY_BATCH = 512
"""Samples of a client that are evaluated at once, at most."""
LEAST_BATCH = 16
"""The same where memory is short."""


class Executor(ABC):
    """Trains and evaluates cohorts."""

    graphs: StepGraphs | None = None
    """Its training steps, where they are captured."""

    def __init__(self, data: DeviceData, train: TrainSettings, engine: EngineSettings) -> None:
        self.data = data
        self.train_settings = train
        self.precision = engine.precision
        self.query_batch = QUERY_BATCH

    def train(self, jobs: Sequence[Job]) -> None:
        """Train every cohort in place and give each job its losses."""
        with numerics(self.precision):
            self._train(jobs)
            self._join()

    def map(self, queries: Sequence[Query]) -> list[Tensor]:
        """Each query's results: clients × samples × whatever the function gives for a sample."""
        with numerics(self.precision):
            return self._map(queries)

    @property
    @abstractmethod
    def said(self) -> str:
        """The way that cohorts were run, in a few words."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back threads and the like; they come again when needed."""

    def shrink(self) -> bool:
        """Memory was short: give back what is held, and evaluate half as many samples at once, if that can be."""
        self.query_batch, fewer = max(LEAST_BATCH, self.query_batch // 2), self.query_batch > LEAST_BATCH
        return fewer

    def step_memory(self, rehearsal: Callable[[], Job]) -> int:
        """Bytes that a step of one more client takes beside its own tensors; a rehearsal is a job of one.

        Where clients train one after another it takes none: there is room for one or there is not.
        """
        return 0

    @abstractmethod
    def _train(self, jobs: Sequence[Job]) -> None:
        """What it queues on streams of its own is not waited for."""

    def _join(self) -> None:
        """Whatever is queued from now on waits for training."""
        if self.graphs is not None:
            self.graphs.join()

    @abstractmethod
    def _map(self, queries: Sequence[Query]) -> list[Tensor]: ...

    @property
    def device(self) -> torch.device:
        return self.data.labels.device

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Forward passes only; each thread enters it itself."""
        with torch.no_grad(), autocast(self.device, self.precision):
            yield


class LoopExecutor(Executor):
    """One client at a time, or several at a time on worker threads with one torch thread each."""

    def __init__(self, data: DeviceData, train: TrainSettings, engine: EngineSettings, workers: int = 1) -> None:
        super().__init__(data, train, engine)
        self.workers = workers
        self._threads: ThreadPoolExecutor | None = None

    @property
    def said(self) -> str:
        return "loop" if self.workers == 1 else f"{self.workers} workers"

    def _train(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.losses = [torch.zeros(len(job.cohort), device=self.device) for _ in job.lessons]
        turns = [(job, i) for job in jobs for i in range(len(job.cohort))]
        turns.sort(key=lambda turn: -sum(lesson.steps[turn[1]] for lesson in turn[0].lessons))
        self._each(self._train_client, turns)

    def _train_client(self, job: Job, position: int) -> None:
        called = job.cohort.clients[position].called
        try:
            self._train_one(job, position)
        except MethodError as error:
            raise MethodError(f"{called}: {error}") from None
        except Exception as error:  # perhaps of a model of the user's own
            error.add_note(f"while training {called}")
            raise

    def _train_one(self, job: Job, position: int) -> None:
        own, received = job.cohort.of(position), job.received.by(position)
        turned = self._turned(own)
        tensors = {**own, **turned}
        for lesson, losses in zip(job.lessons, job.losses, strict=True):
            lesson.stage.begin(tensors)
            fit = Fit(job.cohort.program, lesson.stage, tensors, received, self.train_settings, self.precision)
            for index in lesson.order[position, : lesson.steps[position]]:
                losses[position] += fit.step(self.data.x(index), self.data.y(index))
            losses[position] /= lesson.steps[position]
        for name, tensor in turned.items():
            own[name].copy_(tensor)

    def _map(self, queries: Sequence[Query]) -> list[Tensor]:
        results: list[list[Any]] = [[None] * len(query.cohort) for query in queries]

        def ask(query: Query, position: int, answers: list[Any]) -> None:
            query.cohort.program.train_only(())
            call = query.cohort.program.bind(query.function)
            index = query.index[position, : query.counts[position]]
            with self._inference():
                own, received = query.cohort.of(position), query.received.by(position)
                tensors = {**own, **self._turned(own)}
                pieces = [call(tensors, self.data.x(piece), received) for piece in torch.split(index, self.query_batch)]
            answers[position] = torch.cat(pieces)

        turns = [(q, i, answers) for q, answers in zip(queries, results, strict=True) for i in range(len(q.cohort))]
        self._each(ask, turns)
        return [torch.nn.utils.rnn.pad_sequence(answers, batch_first=True) for answers in results]

    def _turned(self, own: Mapping[str, Tensor]) -> State:
        """Filters with the channels last, as the data come: on a CPU a model that loses the layout regains it."""
        filters = {name: tensor for name, tensor in own.items() if tensor.ndim == 4 and tensor.device.type == "cpu"}
        return {name: tensor.contiguous(memory_format=torch.channels_last) for name, tensor in filters.items()}

    def _each(self, work: Callable[..., None], turns: Iterable[tuple[Any, ...]]) -> None:
        if self.workers == 1:
            for turn in turns:
                work(*turn)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
        turns_done = [self._threads.submit(work, *turn) for turn in turns]
        try:
            for done in turns_done:
                done.result()
        except BaseException:  # nobody goes on with tensors that others may change now
            for done in turns_done:
                done.cancel()
            wait(turns_done)
            raise

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None


class CapturedExecutor(LoopExecutor):
    """One client at a time on CUDA, its steps as graphs; clients of different models on streams of their own."""

    said = "captured"

    def __init__(self, data: DeviceData, train: TrainSettings, engine: EngineSettings) -> None:
        super().__init__(data, train, engine)
        self.graphs = LoopGraphs(data, train, engine) if engine.graphs else None

    def _train(self, jobs: Sequence[Job]) -> None:
        if self.graphs is not None:
            self.graphs.train(jobs)
        else:
            super()._train(jobs)

    def shrink(self) -> bool:
        if self.graphs is not None:
            self.graphs.clear()
        return super().shrink()


@contextmanager
def numerics(precision: str) -> Iterator[None]:
    """Within it CUDA computes repeatably and as precisely as was asked for."""
    tf32, before = precision != "float32", torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        # cuDNN may otherwise pick other algorithms, and so other digits, from run to run.
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False, allow_tf32=tf32):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def cores() -> int:
    """The cores that this process may use: its share of them where several processes do a run together."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, there // torchrun.local_size())


def pick_device(name: str, executor: str) -> torch.device:
    """The device to use, made the current one if it is a GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and executor != "workers" else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda":  # streams and graphs belong to the current device: make it this one
            device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
            torch.cuda.set_device(device)
    except (RuntimeError, AssertionError):  # torch has no one error for this
        usable = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise SettingsError(f"device '{name}' cannot be used here; there is: auto, {', '.join(usable)}") from None
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"device '{name}' is not one that fedexperts runs on: cpu or cuda")
    return device
