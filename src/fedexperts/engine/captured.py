"""One client after another, with steps captured as CUDA graphs: for models that fill a GPU by themselves.

A group of clients has a place for one client: tensors that do not move, which each client in turn is copied into,
trains in, and is copied back from. So a step is captured once, whoever trains, and copying costs next to nothing
(ResNet-18's 45 MB take some 20 µs either way, a step of 64 images milliseconds).
"""

from collections.abc import Hashable, Mapping
from itertools import chain

import torch
from torch import Tensor

from fedexperts.config import EngineSettings, TrainSettings
from fedexperts.engine.batches import DeviceData
from fedexperts.engine.cohort import Job, Lesson
from fedexperts.engine.fit import Fit
from fedexperts.engine.graphs import StepGraphs, group, room
from fedexperts.methods import State, select
from fedexperts.replay import Replay


class LoopGraphs(StepGraphs):
    """The steps of one client at a time; groups of different models run side by side."""

    def __init__(self, data: DeviceData, train: TrainSettings, engine: EngineSettings) -> None:
        super().__init__(data, train, engine)
        self._places: dict[Hashable, _Place] = {}

    @property
    def replays(self) -> list[Replay]:
        return [stage.step for place in self._places.values() for stage in place.stages.values()]

    def clear(self) -> None:
        super().clear()
        self._places.clear()

    def _losses(self, job: Job) -> list[Tensor]:
        key = group(job)
        place = self._places.get(key)
        if place is None or not place.fits(job):
            if place is not None:
                for stage in place.stages.values():
                    stage.step.close()
            place = self._places[key] = _Place(self, job)
        return place.train(job)


class _Place:
    """The fixed memory of one client of a group: its tensors and what it received."""

    def __init__(self, owner: LoopGraphs, job: Job) -> None:
        self.owner = owner
        self.tensors = {name: _room_for(tensor) for name, tensor in job.cohort.of(0).items()}
        self.received = {name: torch.empty_like(tensor) for name, tensor in job.received.by(0).items()}
        self.stages: dict[int, _InPlace] = {}

    def fits(self, job: Job) -> bool:
        return _layout(self.received) == _layout(job.received.by(0))

    def train(self, job: Job) -> list[Tensor]:
        stages = [self._stage(number, job, lesson) for number, lesson in enumerate(job.lessons)]
        moving = set(chain.from_iterable((*lesson.stage.parts, *lesson.stage.copies) for lesson in job.lessons))
        losses = [torch.zeros(len(job.cohort), device=self.owner.data.labels.device) for _ in job.lessons]
        for position, own in enumerate(job.cohort.each()):
            _copy(own, self.tensors)
            _copy(job.received.by(position), self.received)
            for stage, lesson, found in zip(stages, job.lessons, losses, strict=True):
                found[position] = stage.run(lesson, position)
            _copy(select(self.tensors, moving), own)
        return losses

    def _stage(self, number: int, job: Job, lesson: Lesson) -> "_InPlace":
        stage = self.stages.get(number)
        if stage is None or not stage.fits(lesson):
            if stage is not None:
                stage.step.close()
            stage = self.stages[number] = _InPlace(self, job, lesson)
        return stage


class _InPlace:
    """One stage of whoever is in the place."""

    def __init__(self, place: _Place, job: Job, lesson: Lesson) -> None:
        owner = place.owner
        self.data = owner.data
        self.tensors = place.tensors
        self.identity = lesson.stage.identity
        _, steps, width = lesson.order.shape
        self.order = lesson.order.new_zeros((room(steps), width))
        self.loss = torch.zeros((), device=self.order.device)
        self.next_step = torch.zeros(1, dtype=torch.int64, device=self.order.device)
        self.fit = Fit(
            job.cohort.program.captured, lesson.stage, place.tensors, place.received, owner.train_settings,
            owner.engine.precision, owner.engine.compile, owner.lane(job).optimizer,
        )  # fmt: skip
        self.step = Replay(self._step, owner.lane(job).pool, f"steps of one client ({job.cohort.clients[0].model})")

    def fits(self, lesson: Lesson) -> bool:
        return lesson.order.shape[1] <= len(self.order) and self.identity == lesson.stage.identity

    def run(self, lesson: Lesson, position: int) -> Tensor:
        """Train; the mean loss."""
        steps = lesson.steps[position]
        self.order[:steps].copy_(lesson.order[position, :steps])
        lesson.stage.begin(self.tensors)
        self.loss.zero_()
        self.next_step.zero_()
        self.fit.forget()
        for _ in range(steps):
            self.step()
        return self.loss / steps

    def _step(self) -> None:
        index = self.order.index_select(0, self.next_step).squeeze(0)
        self.loss += self.fit.step(self.data.x(index), self.data.y(index))
        self.next_step += 1


def _room_for(tensor: Tensor) -> Tensor:
    """Memory like a tensor's; of images and filters with the channels last, as the data come: nothing is turned."""
    last = torch.channels_last if tensor.ndim == 4 else torch.contiguous_format
    return torch.empty_like(tensor, memory_format=last)


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in source.items():
        target[name].copy_(tensor)


def _layout(received: State) -> Hashable:
    return tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in received.items())
