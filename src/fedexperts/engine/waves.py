"""Work with many clients, as many at a time as the device has room for."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from fedexperts.engine.cohort import Cohort
from fedexperts.engine.executors import Executor
from fedexperts.engine.fleet import Fleet
from fedexperts.errors import RoomError
from fedexperts.replay import give_back, ran_out

Done = TypeVar("Done")
Work = Callable[[list[Cohort]], Done]


class Waves:
    """One wave of clients after another.

    Where there is not enough memory for a wave after all, its clients become what they were before it, and it is done
    again with half as many at a time. A result does not show it: what is random belongs to a client and a round.
    """

    def __init__(self, fleet: Fleet, executor: Executor, device: torch.device) -> None:
        self.fleet = fleet
        self.executor = executor
        self.device = device
        self.notes: list[str] = []  # what is to be said about memory

    def each(self, clients: Sequence[int], work: Work[Done]) -> Iterator[Done]:
        """Do some work with all clients; `work` marks them as changed (`Fleet.changed`) last of all, if they are."""
        left = dict.fromkeys(clients)
        while left:
            waves, reason = self.fleet.waves(list(left)), ""
            while left and not reason:
                found = self._tried(waves, work)
                if isinstance(found, str):
                    reason = found
                    break
                for client in found[0]:
                    del left[client]
                yield found[1]
            del waves
            if reason:
                self._make_room(reason)

    def _tried(self, waves: Iterator[list[Cohort]], work: Work[Done]) -> tuple[list[int], Done] | str:
        """The next wave, or why there was no room for it. A function of its own: when it is over, it holds nothing."""
        undo: Callable[[], None] | None = None
        try:
            cohorts = next(waves)
            undo = self.fleet.noted(cohorts)
            result = work(cohorts)
            return [client.id for cohort in cohorts for client in cohort.clients], result
        except RuntimeError as error:
            if not ran_out(error):
                raise
            if self.device.type == "cuda":
                torch.cuda.synchronize()  # what was queued may still change the clients
            if undo is not None:
                undo()
            return str(error)

    def _make_room(self, reason: str) -> None:
        too_many, fewer_samples = self.fleet.shrink(), self.executor.shrink()
        if too_many:
            self.notes.append(f"{too_many} clients at once did not fit into memory: {self.fleet.limit} at a time")
        elif not fewer_samples:
            raise RoomError(
                f"a client alone does not fit into the memory of {self.device}; a smaller --batch-size or a smaller "
                f"model would need less ({reason.splitlines()[0]})"
            )
        give_back()
