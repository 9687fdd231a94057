"""FLOPs of local training, counted in forward and backward passes by torch's own counter."""

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedexperts.engine import DeviceData, Job, Observer, Query, Simulation
from fedexperts.methods import Batch, State


class FlopMeter(Observer):
    """FLOPs of each client in the present round.

    One step of one client is counted for each shape, stage and batch width, once per run, in a pass through the
    method's own loss with tensors of a real client's shapes but without values ("meta"): small clients have many
    widths, and arithmetic would cost more than their training. A client's FLOPs are those times its steps. Products and
    convolutions count, element-wise work does not.
    """

    def __init__(self) -> None:
        self.present: dict[int, int] = {}
        self._known: dict[Hashable, int] = {}
        self._data: DeviceData | None = None

    def started(self, simulation: Simulation) -> None:
        self._data = simulation.data

    def trained(self, round_number: int, job: Job) -> None:
        per_step = [self._step(job, number) for number in range(len(job.lessons))]
        for position, client in enumerate(job.cohort.clients):
            self.present[client.id] = sum(
                flops * lesson.steps[position] for flops, lesson in zip(per_step, job.lessons, strict=True)
            )
            if job.collected is not None:
                self.present[client.id] += self._sample(job.collected) * job.collected.counts[position]

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        self.present.clear()

    def _sample(self, query: Query) -> int:
        """A sample's forward pass."""
        program = query.cohort.program
        key = (program.signature, query.function.__qualname__)
        if key not in self._known:
            assert self._data is not None
            program.train_only(())
            x = self._data.x(query.index[0, :1]).to("meta")
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                program.bind(query.function)(_shapes(query.cohort.of(0)), x, _shapes(query.received.by(0)))
            self._known[key] = counter.get_total_flops()
        return self._known[key]

    def _step(self, job: Job, number: int) -> int:
        lesson = job.lessons[number]
        key = (job.cohort.program.signature, number, lesson.stage.identity, lesson.order.shape[2])
        if key not in self._known:
            assert self._data is not None
            index, program = lesson.order[0, 0], job.cohort.program
            program.train_only(lesson.stage.parts)
            moving = lesson.stage.moving(program.parameters)
            tensors = {n: t.requires_grad_(n in moving) for n, t in _shapes(job.cohort.of(0)).items()}
            batch = Batch(self._data.x(index).to("meta"), self._data.y(index).to("meta"))
            with FlopCounterMode(display=False) as counter, torch.enable_grad():
                program.bind(lesson.stage.loss)(tensors, batch, _shapes(job.received.by(0))).backward()
            self._known[key] = counter.get_total_flops()
        return self._known[key]


def _shapes(tensors: Mapping[str, Tensor]) -> State:
    """The tensors without what is in them."""
    return {name: tensor.to("meta") for name, tensor in tensors.items()}
