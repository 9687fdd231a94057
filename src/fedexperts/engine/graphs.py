"""Training steps captured as CUDA graphs: a step becomes one launch, of a whole stack or of one client.

A graph works on fixed memory. What changes from round to round (the order of batches, what was received) is copied into
it, and a counter on the device says which step is next. Before a step is captured, real steps run eagerly and warm
everything up.

A group of clients always has the same stream: a captured product works in the scratch memory of the stream that it was
captured on, so two graphs of one stream must never run side by side.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedexperts.config import EngineSettings, TrainSettings
from fedexperts.engine.batches import DeviceData
from fedexperts.engine.cohort import Job, Lesson
from fedexperts.engine.fit import Fit, Memory
from fedexperts.replay import Pool, Replay

LEAST_STEPS = 64
"""Room for the order of batches, so that a client with more of them seldom needs new graphs."""


class Lane(NamedTuple):
    """Where a group's steps run one after another, in memory that is theirs."""

    stream: torch.cuda.Stream
    pool: Pool
    optimizer: dict[str, Memory]


class StepGraphs(ABC):
    """Trains jobs through captured steps, each group of clients on its own stream."""

    def __init__(self, data: DeviceData, train: TrainSettings, engine: EngineSettings) -> None:
        self.data = data
        self.train_settings = train
        self.engine = engine
        self._lanes: dict[Hashable, Lane] = {}

    def train(self, jobs: Sequence[Job]) -> None:
        """Begin it: nothing waits for its end before `join`."""
        main = torch.cuda.current_stream()
        for job in jobs:
            if not job.lessons:  # a round may be for other things
                continue
            stream = self.lane(job).stream
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                job.losses = self._losses(job)

    def join(self) -> None:
        """The current stream waits for all training."""
        main = torch.cuda.current_stream()
        for lane in self._lanes.values():
            main.wait_stream(lane.stream)

    def lane(self, job: Job) -> Lane:
        """That of the job's group."""
        key = group(job)
        if key not in self._lanes:
            self._lanes[key] = Lane(torch.cuda.Stream(), Pool(), {})  # type: ignore[no-untyped-call]
        return self._lanes[key]

    @property
    @abstractmethod
    def replays(self) -> Sequence[Replay]:
        """All steps that are or will be captured."""

    def clear(self) -> None:
        """Give all graphs and their memory back."""
        for replay in self.replays:
            replay.close()
        for lane in self._lanes.values():
            lane.optimizer.clear()

    @abstractmethod
    def _losses(self, job: Job) -> list[Tensor]:
        """Train the cohort; each lesson's mean losses."""


class StackGraphs(StepGraphs):
    """The steps of whole stacks."""

    def __init__(self, data: DeviceData, train: TrainSettings, engine: EngineSettings) -> None:
        super().__init__(data, train, engine)
        self._tracks: dict[Hashable, _Track] = {}

    @property
    def replays(self) -> list[Replay]:
        return [step for track in self._tracks.values() for step in track.steps.values()]

    def clear(self) -> None:
        super().clear()
        self._tracks.clear()

    def _losses(self, job: Job) -> list[Tensor]:
        return [self._track(job, i, lesson).run(job, lesson) for i, lesson in enumerate(job.lessons)]

    def _track(self, job: Job, stage: int, lesson: Lesson) -> "_Track":
        """The track whose memory this cohort is; made again when the memory or a shape has changed."""
        key = (group(job), stage)
        track = self._tracks.get(key)
        if track is None or not track.fits(job, lesson):
            if track is not None:
                for step in track.steps.values():
                    step.close()
            track = self._tracks[key] = _Track(self, job, lesson)
        return track


class _Track:
    """The fixed memory of one stage of one cohort, and its steps by number of clients still training.

    The cohort's tensors are that memory already: the fleet keeps its buffers. They may hold many clients that are only
    asked; there is room to train for those who train, and for some more who may do so in another round.
    """

    def __init__(self, owner: StackGraphs, job: Job, lesson: Lesson) -> None:
        self.data = owner.data
        self.memory = _memory(job, lesson)
        clients, steps, width = lesson.order.shape
        self.capacity = min(2 ** (clients - 1).bit_length(), len(next(iter(job.cohort.buffers.values()))))
        self.order = lesson.order.new_zeros((self.capacity, room(steps), width))
        self.received = job.received.roomy(self.capacity)
        self.losses = torch.zeros(self.capacity, device=self.order.device)
        self.next_step = torch.zeros(1, dtype=torch.int64, device=self.order.device)
        self.pool = owner.lane(job).pool
        self.whole = Fit(
            job.cohort.program.stacked, lesson.stage, {n: t[: self.capacity] for n, t in job.cohort.buffers.items()},
            self.received, owner.train_settings, owner.engine.precision, owner.engine.compile,
            owner.lane(job).optimizer,
        )  # fmt: skip
        self.steps: dict[int, Replay] = {}

    def fits(self, job: Job, lesson: Lesson) -> bool:
        clients, steps, _ = lesson.order.shape
        enough = clients <= self.capacity and steps <= self.order.shape[1]
        return enough and self.memory == _memory(job, lesson)

    def run(self, job: Job, lesson: Lesson) -> Tensor:
        clients, steps = lesson.order.shape[:2]
        self.order[:clients, :steps].copy_(lesson.order)
        for name, target in self.received.first(clients).tensors.items():
            target.copy_(job.received.tensors[name])
        lesson.stage.begin(job.cohort.tensors)
        self.losses.zero_()
        self.next_step.zero_()
        self.whole.forget()
        for step in range(steps):
            self._advance(lesson.active(step))
        counts = torch.tensor(lesson.steps, pin_memory=True).to(self.losses.device, non_blocking=True)
        return self.losses[:clients] / counts

    def _advance(self, active: int) -> None:
        if active not in self.steps:
            fit = self.whole.first(active)
            self.steps[active] = Replay(lambda: self._step(active, fit), self.pool, f"steps of {active} clients")
        self.steps[active]()

    def _step(self, active: int, fit: Fit) -> None:
        index = self.order[:active].index_select(1, self.next_step).squeeze(1)
        self.losses[:active] += fit.step(self.data.x(index), self.data.y(index))
        self.next_step += 1


def group(job: Job) -> Hashable:
    """Clients that are stacked together have the same program and the same width of batches."""
    return job.cohort.program.signature, job.lessons[0].order.shape[2]


def room(steps: int) -> int:
    """For how many steps there is memory, where so many are needed now."""
    return max(LEAST_STEPS, 2 * steps)


def _memory(job: Job, lesson: Lesson) -> Hashable:
    """What a captured step is bound to: where the cohort's tensors are, what is received, what the stage does."""
    return (
        tuple((tensor.data_ptr(), len(tensor)) for tensor in job.cohort.buffers.values()),
        tuple(
            (n, tuple(t.shape if n in job.received.common else t.shape[1:])) for n, t in job.received.tensors.items()
        ),
        job.received.common,
        lesson.stage.identity,
    )
