"""Before clients train: will all of them fit into the device's memory at once, and if not, how many will?"""

import gc
import logging
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from fedexperts.engine.batches import width
from fedexperts.engine.cohort import Cohort, Job, Lesson, Received
from fedexperts.engine.memory import USED, Need, free_memory, split
from fedexperts.methods import Round, Stage
from fedexperts.replay import ran_out

if TYPE_CHECKING:
    from fedexperts.engine.usable import Usable


log = logging.getLogger(__name__)


class Estimate:
    """Looks at a step of one client of each kind, once."""

    def __init__(self, clients: "Usable") -> None:
        self.clients = clients
        self._needs: dict[Hashable, Need] = {}
        self._looked = False
        self._swept = clients.device.type == "cuda"  # there it is done in any case, see `_free`

    def fit(self, sampled: Sequence[int], now: Round) -> None:
        """Let fewer clients be on the device at a time, if all of them would not fit."""
        if self._free is None or len(sampled) <= 1:
            return
        fleet = self.clients.fleet
        try:
            needs = [(self._need(ids[0], now), len(ids)) for ids in fleet.members(sampled).values()]
        except RuntimeError as error:
            if not ran_out(error):
                raise
            fleet.limit = 1  # it may still have room without the copy of it that was looked at
            self.clients.waves.notes.append("there was no room to look at a client's step: one client at a time")
            return
        self._look_at_store(max(need.kept for need, _ in needs))
        limit, note = split(needs, self._free)
        if limit is not None and limit < fleet.limit and not self._swept:
            self._sweep()
            limit, note = split(needs, self._free)
        if limit is not None and limit < fleet.limit:
            fleet.limit = limit
            self.clients.waves.notes.append(note)

    def _look_at_store(self, kept: int) -> None:
        """Say at once if what all clients may come to keep has no room in memory: it cannot be split."""
        store, clients = self.clients.store, len(self.clients.specs)
        free = None if store.on_disk or self._looked else free_memory(store.device)
        self._looked = True
        if free is not None and clients * kept > USED * free:
            log.warning(
                "what %s clients keep may come to %.2g GB, %.2g GB of memory are free: --store disk has it in files",
                f"{clients:,}", clients * kept / 1e9, free / 1e9,
            )  # fmt: skip

    @cached_property
    def _free(self) -> int | None:
        """The device's free memory before the first round of this process."""
        if self.clients.device.type == "cuda":
            gc.collect()  # graphs of a run before this one may still be there, as a circle: what they hold looks free
        return free_memory(self.clients.device)

    def _sweep(self) -> None:
        """Where memory is short, let go of a run before this one that may still be there, as a circle.

        Not always: the longer a process has lived, the longer it takes to look for those.
        """
        self._swept = True
        before = free_memory(self.clients.device)
        gc.collect()
        after = free_memory(self.clients.device)
        if self._free is not None and before is not None and after is not None:
            self._free += max(0, after - before)

    def _need(self, client: int, now: Round) -> Need:
        clients = self.clients
        program, stages = clients.fleet.program(client), clients.method.stages(now)
        size = width(clients.specs[client].samples, clients.settings.batch_size)
        key = (program, size, tuple(stage.identity for stage in stages))
        if key not in self._needs:
            step = clients.executor.step_memory(lambda: self._rehearsal(client, stages))
            self._needs[key] = Need.of(clients.method, program, step)
        return self._needs[key]

    def _rehearsal(self, client: int, stages: Sequence[Stage]) -> Job:
        """A step of a client in each stage, with a copy of its tensors."""
        clients = self.clients
        spec, message = clients.specs[client], clients.message_for(client)
        alone = {name: tensor[None] for name, tensor in clients.client_state(client).items()}
        samples = width(spec.samples, clients.settings.batch_size)
        order = torch.zeros((1, 1, samples), dtype=torch.int64, device=clients.device)
        received = Received.of([spec], [clients.method.heard(message)])
        cohort = Cohort(clients.fleet.program(client), [spec], alone, alone)
        return Job(cohort, [Lesson(stage, order, (1,)) for stage in stages], received, [message])
