"""All clients of a group as one program."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import vmap

from fedexperts.config import EngineSettings, TrainSettings
from fedexperts.engine.batches import DeviceData
from fedexperts.engine.cohort import Job, Lesson, Query, Received
from fedexperts.engine.executors import QUERY_BATCH, Executor, numerics
from fedexperts.engine.fit import Fit, memories
from fedexperts.engine.graphs import StackGraphs
from fedexperts.engine.memory import BESIDE, kept_for_backward
from fedexperts.engine.passes import PassGraphs
from fedexperts.methods import State

STACKED_BATCH = 8192
"""Samples of all stacked clients that are evaluated at once: enough to fill a GPU, and memory does not follow N."""


class StackedExecutor(Executor):
    """All clients of a cohort in one program; on CUDA each cohort on a stream of its own, its steps as graphs."""

    said = "stacked"

    def __init__(self, data: DeviceData, train: TrainSettings, engine: EngineSettings) -> None:
        super().__init__(data, train, engine)
        captures = self.device.type == "cuda" and engine.graphs
        self.graphs = StackGraphs(data, train, engine) if captures else None
        self.passes = PassGraphs() if captures else None

    def _train(self, jobs: Sequence[Job]) -> None:
        if self.graphs is not None:
            self.graphs.train(jobs)
            return
        for job in jobs:
            job.losses = [self._lesson(job, lesson) for lesson in job.lessons]

    def shrink(self) -> bool:
        for graphs in (self.graphs, self.passes):
            if graphs is not None:
                graphs.clear()
        return super().shrink()

    def step_memory(self, rehearsal: Callable[[], Job]) -> int:
        """Of the stage that needs most on its way, and what the optimisers keep; they share it."""
        job = rehearsal()
        on_the_way = [self._measured(job, lesson) for lesson in job.lessons]
        kept = {
            name: each * job.cohort.tensors[name].nbytes
            for lesson in job.lessons
            if (each := memories(self.train_settings, lesson.stage))
            for name in self._moving(job, lesson)
        }
        return int(max(on_the_way, default=0) + sum(kept.values()))

    def _measured(self, job: Job, lesson: Lesson) -> float:
        """A step of a job whose tensors are nobody's; gradients count twice, as the optimiser makes its own of them."""
        with numerics(self.precision), kept_for_backward(job.cohort.tensors) as kept:
            self._lesson(job, lesson)
        return BESIDE * kept() + 2 * sum(job.cohort.tensors[name].nbytes for name in self._moving(job, lesson))

    def _moving(self, job: Job, lesson: Lesson) -> Sequence[str]:
        return lesson.stage.moving(job.cohort.program.parameters)

    def _lesson(self, job: Job, lesson: Lesson) -> Tensor:
        cohort = job.cohort
        losses = torch.zeros(len(cohort), device=self.device)
        lesson.stage.begin(cohort.tensors)
        fit = Fit(
            cohort.program.stacked,
            lesson.stage,
            cohort.tensors,
            job.received,
            self.train_settings,
            self.precision,
        )
        training = len(cohort)
        for step in range(lesson.order.shape[1]):
            if (active := lesson.active(step)) < training:
                fit, training = fit.first(active), active
            index = lesson.order[:active, step]
            losses[:active] += fit.step(self.data.x(index), self.data.y(index))
        return losses / torch.tensor(lesson.steps, device=self.device)

    def _map(self, queries: Sequence[Query]) -> list[Tensor]:
        return [self._query(query) for query in queries]

    def _query(self, query: Query) -> Tensor:
        program, function = query.cohort.program.stacked, query.function
        most = STACKED_BATCH * self.query_batch // QUERY_BATCH
        each = max(1, min(self.query_batch, most // len(query.cohort)))

        def answers(tensors: State, received: Received, index: Tensor) -> Tensor:
            program.train_only(())
            call = vmap(program.bind(function), in_dims=(0, 0, received.dims))
            with self._inference():
                pieces = torch.split(index, each, dim=1)
                return torch.cat([call(tensors, self.data.x(piece), received.tensors) for piece in pieces], dim=1)

        if query.again and self.passes is not None:
            return self.passes.answer(query, answers)
        return answers(query.cohort.tensors, query.received, query.index)
