"""FLOPs of local training, counted in forward and backward passes by torch's own counter."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedexperts.engine import Clients, Job, Observer, Query, Simulation
from fedexperts.methods import Batch, State, part_of
from fedexperts.models import SparseExperts, form

Put = Callable[[Tensor], Tensor]


class FlopMeter(Observer):
    """FLOPs of each client in the present round.

    One step of one client is counted for each shape, stage and batch width, once per run, in a pass through the
    method's own loss with tensors of a real client's shapes but, where that suffices, without values ("meta"): small
    clients have many widths, and arithmetic would cost more than their training. A client's FLOPs are those times its
    steps. Products and convolutions count, element-wise work does not.

    Nothing may hang on which client's batch that was. So where samples choose experts, each goes through as many as it
    may choose, which are taken to be alike (the first of them). Where the method tells how many samples each expert had
    in the training (`Method.uses`), a step is counted without those, and a sample's way through each of them, in the
    stage where that is longest.
    """

    def __init__(self, run: Clients | None = None) -> None:
        """`run`: whose clients train, where there is no simulation that says so when it starts."""
        self.present: dict[int, int] = {}
        self._known: dict[Hashable, int] = {}
        self._known_ways: dict[Hashable, list[int]] = {}
        self._run = run

    def started(self, simulation: Simulation) -> None:
        self._run = simulation

    def trained(self, round_number: int, job: Job) -> None:
        told = self._told(job)
        per_step = [self._step(job, number, tuple(told)) for number in range(len(job.lessons))]
        per_use = {place: self._ways(job, place) for place in told}
        for position, client in enumerate(job.cohort.clients):
            steps = zip(per_step, (lesson.steps[position] for lesson in job.lessons), strict=True)
            uses = (
                (n, flops) for place in told for n, flops in zip(told[place][position], per_use[place], strict=True)
            )
            self.present[client.id] = sum(n * flops for n, flops in (*steps, *uses))
            if job.collected is not None:
                self.present[client.id] += self._sample(job.collected) * job.collected.counts[position]

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        self.present.clear()

    @property
    def run(self) -> Clients:
        assert self._run is not None
        return self._run

    def _told(self, job: Job) -> dict[str, list[list[int]]]:
        """Of each place with experts whose uses the method tells: clients × experts. A device is waited for once."""
        each = [self.run.method.uses(own) for own in job.cohort.each()]
        if not each[0]:
            return {}
        together = torch.stack([torch.cat([*uses.values()]) for uses in each]).long().cpu()
        found = torch.split(together, [len(uses) for uses in each[0].values()], dim=1)
        return {place: uses.tolist() for place, uses in zip(each[0], found, strict=True)}

    def _sample(self, query: Query) -> int:
        """A sample's forward pass."""
        program = query.cohort.program
        key = (program, query.function.__qualname__)
        if key not in self._known:
            program.train_only(())
            call, x = program.bind(query.function), self.run.data.x(query.index[0, :1])

            def forward(put: Put) -> None:
                call(_put(query.cohort.of(0), put), put(x), _put(query.received.by(0), put))

            self._known[key] = _count(forward)
        return self._known[key]

    def _ways(self, job: Job, place: str) -> list[int]:
        """A sample's way through each of the experts and back, in the stage where it is longest."""
        lessons = tuple(
            (number, one.stage.identity, one.order.shape[2])
            for number, one in enumerate(job.lessons)
            if part_of(place) in one.stage.parts
        )
        key = (job.cohort.program, place, lessons)
        if key not in self._known_ways:

            def way(expert: int, number: int, width: int) -> int:
                return (self._step(job, number, (place,), (expert,)) - self._step(job, number, (place,))) // width

            forms = [form(expert) for expert in job.cohort.program.model.get_submodule(place).children()]
            longest = {  # of one expert of each form
                forms[expert]: max((way(expert, number, width) for number, _, width in lessons), default=0)
                for expert in map(forms.index, set(forms))
            }
            self._known_ways[key] = [longest[one] for one in forms]
        return self._known_ways[key]

    def _step(self, job: Job, number: int, told: tuple[str, ...], through: tuple[int, ...] = ()) -> int:
        """A step of a stage; where it trains experts in places that are `told`, samples go `through` these only."""
        lesson = job.lessons[number]
        apart = tuple(place for place in told if part_of(place) in lesson.stage.parts)
        # Of a model that grows more is sent: what a step costs then has not been counted yet.
        sent, width = len(job.sent[0].tensors), lesson.order.shape[2]
        key = (job.cohort.program, number, lesson.stage.identity, width, sent, apart, through)
        if key not in self._known:
            index, program = lesson.order[0, 0], job.cohort.program
            program.train_only(lesson.stage.parts)
            call, moving = program.bind(lesson.stage.loss), lesson.stage.moving(program.parameters)
            x, y = self.run.data.x(index), self.run.data.y(index)

            def step(put: Put) -> None:
                tensors = {n: t.requires_grad_(n in moving) for n, t in _put(job.cohort.of(0), put).items()}
                call(tensors, Batch(put(x), put(y)), _put(job.received.by(0), put)).backward()

            with _sending(program.model, dict.fromkeys(apart, through)):
                self._known[key] = _count(step)
        return self._known[key]


class _Sent(SparseExperts):
    """All samples go through some of the experts; by itself through the first of them, as many as a sample chooses."""

    through: tuple[int, ...] | None

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        through = range(chosen.shape[1]) if self.through is None else self.through
        said = [self[expert](x) for expert in through]
        return weights.sum(1, keepdim=True) * sum(said, start=weights.new_zeros(1, self.outputs))


@contextmanager
def _sending(model: nn.Module, through: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
    """Samples go through these experts in these places, whatever the model says."""
    places = [(name, part) for name, part in model.named_modules() if type(part) is SparseExperts]
    for name, part in places:
        part.__class__, part.through = _Sent, through.get(name)  # type: ignore[assignment]
    try:
        yield
    finally:
        for _, part in places:
            part.__class__ = SparseExperts
            del part.through


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
