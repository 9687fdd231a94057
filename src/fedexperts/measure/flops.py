"""FLOPs of local training, counted in forward and backward passes by torch's own counter."""

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedexperts.engine import DeviceData, Job, Observer, Query, Simulation
from fedexperts.methods import Batch, State


class FlopMeter(Observer):
    """FLOPs of each client in the present round.

    One step of one client is counted for each shape, stage and batch width, once per run, in a pass through the
    method's own loss with tensors of a real client's shapes but, where that suffices, without values ("meta"): small
    clients have many widths, and arithmetic would cost more than their training. A client's FLOPs are those times its
    steps. Products and convolutions count, element-wise work does not.
    """

    def __init__(self, data: DeviceData | None = None) -> None:
        """`data`: the samples, where there is no simulation that says so when it starts."""
        self.present: dict[int, int] = {}
        self._known: dict[Hashable, int] = {}
        self._data = data

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
            call, x = program.bind(query.function), self._data.x(query.index[0, :1])

            def forward(put: Put) -> None:
                call(_put(query.cohort.of(0), put), put(x), _put(query.received.by(0), put))

            self._known[key] = _count(forward)
        return self._known[key]

    def _step(self, job: Job, number: int) -> int:
        lesson = job.lessons[number]
        # Of a model that grows more is sent: what a step costs then has not been counted yet.
        sent, width = len(job.sent[0].tensors), lesson.order.shape[2]
        key = (job.cohort.program.signature, number, lesson.stage.identity, width, sent)
        if key not in self._known:
            assert self._data is not None
            index, program = lesson.order[0, 0], job.cohort.program
            program.train_only(lesson.stage.parts)
            call, moving = program.bind(lesson.stage.loss), lesson.stage.moving(program.parameters)
            x, y = self._data.x(index), self._data.y(index)

            def step(put: Put) -> None:
                tensors = {n: t.requires_grad_(n in moving) for n, t in _put(job.cohort.of(0), put).items()}
                call(tensors, Batch(put(x), put(y)), _put(job.received.by(0), put)).backward()

            self._known[key] = _count(step)
        return self._known[key]


Put = Callable[[Tensor], Tensor]


def _count(work: Callable[[Put], None]) -> int:
    """The FLOPs of some work, on shapes alone or, where it depends on values (experts that samples choose), on them."""
    ways: tuple[Put, Put] = (lambda tensor: tensor.to("meta"), lambda tensor: tensor.detach().clone())
    for put in ways:
        with suppress(NotImplementedError), FlopCounterMode(display=False) as counter, torch.enable_grad():
            work(put)
            return int(counter.get_total_flops())
    raise AssertionError("real tensors are always implemented")


def _put(tensors: Mapping[str, Tensor], put: Put) -> State:
    return {name: put(tensor) for name, tensor in tensors.items()}
