"""Which way a group of clients is run, if the settings leave it open.

On a CPU: one worker per core, whatever the model. On a GPU small models leave it idle unless they are stacked, while
one large model fills it, and runs at its best alone, with cuDNN's convolutions, its steps captured. What decides is the
work of a sample's forward pass, not a measurement of time: which way it is shows in the last digits, and the same seed
must give the same digits every time.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedexperts.config import EngineSettings, TrainSettings
from fedexperts.engine.batches import DeviceData
from fedexperts.engine.cohort import Cohort, Job, Lesson, Query, Received
from fedexperts.engine.executors import CapturedExecutor, Executor, LoopExecutor, cores
from fedexperts.engine.stacked import StackedExecutor
from fedexperts.errors import SettingsError
from fedexperts.methods import Batch, Model, State

HEAVY = {"float64": 2e9, "float32": 2e9, "tf32": 5e8, "bfloat16": 5e8}
"""FLOPs of a sample's forward pass from which on clients are not stacked, by the arithmetic of products.

On an H200 rounds of FedAvg took, stacked and in a captured loop: in tf32 (10 clients × 256 images, batch 64) ResNet-18
with a quarter of its widths (7e7) 70 and 161 ms, with half of them (2.8e8) 108 and 149, and PM-MoE over 20 extractors
(3.3e8) 355 and 813 ms; in float32 (5 × 512) ResNet-18 itself (1.1e9) 375 and 514 ms. Beyond that nothing was
measured; that large models do better alone there is what a probe said, before there were kernels of our own.
"""
GROUPED = 10
"""So many times as much counts the work of a model with grouped convolutions: they are as many kernels in a stack as
alone. In tf32 MobileNet (9e7 FLOPs, 5 × 256 images) took 106 ms stacked and 76 captured, with half of its widths
(2.4e7, 10 × 256) 92 and 129."""
WAYS: dict[str, type[Executor]] = {"stacked": StackedExecutor, "captured": CapturedExecutor, "loop": LoopExecutor}


class ChoosingExecutor(Executor):
    """Hands each cohort to the executor that suits it: the one that was asked for, or the quickest.

    Clients whose shapes depend on values (`Program.fixed`) go through the plain loop in any case.
    """

    def __init__(self, data: DeviceData, train: TrainSettings, engine: EngineSettings) -> None:
        super().__init__(data, train, engine)
        self.asked = engine.executor
        possible = WAYS if self.asked == "auto" else (self.asked, "loop")
        self.ways = {way: WAYS[way](data, train, engine) for way in possible}
        self._work: dict[Hashable, float] = {}
        self._chosen: dict[str, str] = {}

    @property
    def said(self) -> str:
        """The ways that were chosen for training, and for which models."""
        models: dict[str, list[str]] = defaultdict(list)
        for model, way in self._chosen.items():
            models[way].append(model)
        return ", ".join(f"{way} ({', '.join(sorted(names))})" for way, names in models.items())

    def close(self) -> None:
        for executor in self.ways.values():
            executor.close()

    def shrink(self) -> bool:
        fewer = [executor.shrink() for executor in self.ways.values()]  # each of them
        return all(fewer)

    def step_memory(self, rehearsal: Callable[[], Job]) -> int:
        job = rehearsal()
        return self.ways[self.way(job)].step_memory(lambda: job)

    def _train(self, jobs: Sequence[Job]) -> None:
        together: dict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            way = self.way(job)
            self._chosen |= {str(client.model): way for client in job.cohort.clients}
            together[way].append(job)
        for way, executor in self.ways.items():  # the loop last: it waits for nobody, and the others not for it
            executor._train(together[way])

    def _join(self) -> None:
        for executor in self.ways.values():
            executor._join()

    def _map(self, queries: Sequence[Query]) -> list[Tensor]:
        ways = [self._way(query.cohort, partial(self._of_query, query)) for query in queries]
        return [self.ways[way].map([query])[0] for way, query in zip(ways, queries, strict=True)]

    def way(self, job: Job) -> str:
        """How the job's cohort is trained."""
        return self._way(job.cohort, partial(self._of_job, job))

    def _way(self, cohort: Cohort, work: Callable[[], float]) -> str:
        if not cohort.program.fixed:
            return "loop"
        if self.asked != "auto":
            return self.asked
        return "captured" if work() >= HEAVY[self.precision] else "stacked"

    def _of_job(self, job: Job) -> float:
        return max((self._of_lesson(job, lesson) for lesson in job.lessons), default=0)

    def _of_lesson(self, job: Job, lesson: Lesson) -> float:
        index = lesson.order[0, 0]

        def loss(model: Model, x: Tensor, received: State) -> Tensor:
            return lesson.stage.loss(model, Batch(x, self.data.y(index)), received)

        return self._forward(job.cohort, job.received, loss, index, lesson.stage.identity)

    def _of_query(self, query: Query) -> float:
        function = query.function
        return self._forward(
            query.cohort, query.received, function, query.index[0, :1], getattr(function, "__qualname__", function)
        )

    def _forward(self, cohort: Cohort, received: Received, function: Any, index: Tensor, name: Hashable) -> float:
        """FLOPs of a sample's forward pass, counted once for each model and function.

        As the program runs with fixed shapes: how many experts a sample uses otherwise depends on the weights.
        """
        program = cohort.program.captured
        key = (program.signature, name)
        if key not in self._work:
            program.train_only(())
            call = program.bind(function)
            with FlopCounterMode(display=False) as counter, self._inference():
                call(cohort.of(0), self.data.x(index), received.by(0))
            self._work[key] = counter.get_total_flops() / max(len(index), 1) * times(program.model)
        return self._work[key]


def times(model: nn.Module) -> int:
    """How often the work of a model counts."""
    grouped = any(isinstance(layer, nn.Conv2d) and layer.groups > 1 for layer in model.modules())
    return GROUPED if grouped else 1


def executor_for(data: DeviceData, train: TrainSettings, engine: EngineSettings) -> Executor:
    """The executor that the settings name, or one that chooses."""
    on_cpu, kind = data.labels.device.type == "cpu", engine.executor
    if kind == "captured" and on_cpu:
        raise SettingsError("executor 'captured' needs a CUDA device; on a CPU there are loop, workers and stacked")
    if kind == "workers" or (kind == "auto" and on_cpu):
        return LoopExecutor(data, train, engine, workers=cores())
    return LoopExecutor(data, train, engine) if kind == "loop" else ChoosingExecutor(data, train, engine)
