"""What each of two processes does in test_ranks.py: `torchrun --nproc-per-node=2 two_ranks.py FOLDER`."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from everything import Everything
from support import LIGHT, assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.engine import DividedSimulation, Simulation, started
from fedexperts.engine.store import Store
from fedexperts.measure import Fetches, History
from fedexperts.methods import registry

ranks = started()
assert ranks is not None
assert ranks.size == 2
task, moved = make_task(), 0
MOVES = 11  # a seed with which clients of the second round have trained elsewhere in the first
GROWN = {"fedemoe": LIGHT["fedemoe"] | {"scale_every": 1}}  # in the second round the tree has grown
together = partial(DividedSimulation, ranks=ranks)


class Counting(Store):
    """A store that knows how often a client has left it."""

    def pop(self, client: int) -> object:
        global moved
        found = super().pop(client)
        moved += found is not None
        return found


def every_method_ends_in_the_bits_of_one_process() -> None:
    """Rows of the history, the server's state and every client's model, at every rank."""
    for method in (*registry().values(), Everything):
        watching = [(History(), Fetches(None)) for _ in range(2)]
        values: dict[str, Any] = {"rounds": 2, "seed": MOVES, "options": GROWN.get(method.name)}
        divided = make_simulation(method, task, observers=watching[0], simulation=together, **values)
        divided.store.__class__ = Counting
        divided.run()
        if ranks.rank == len(watching[0][0].rows) % 2:  # one rank checks, the other begins with the next
            alone = finished(method, task, observers=watching[1], **values)
            assert_same_bits(states(divided), states(alone))
            assert watching[0][0].rows == watching[1][0].rows, method
    assert moved > 10, "hardly anybody had to be brought elsewhere"


def a_run_goes_on_with_more_or_fewer_ranks(folder: Path, store: str) -> None:
    """A checkpoint of two is continued by one, and the other way round."""
    whole = states(finished("fedmoe-da", task, seed=MOVES))
    kinds: list[partial[DividedSimulation] | type[Simulation]] = [together, Simulation]
    for number, (first, second) in enumerate([kinds, kinds[::-1], [together, together]]):
        place, both = folder / f"{store}-{number}", ranks.leads
        begun = make_simulation("fedmoe-da", task, folder=place, simulation=first, store=store, seed=MOVES)
        if first is together or both:
            begun.step()
            begun.checkpoint()
            begun.step()  # and what comes after it is lost
        ranks.notes("there is a checkpoint")
        if second is together or both:
            going_on = make_simulation("fedmoe-da", task, folder=place, simulation=second, store=store, seed=MOVES)
            going_on.restore()
            going_on.run()
            assert_same_bits(states(going_on), whole)


every_method_ends_in_the_bits_of_one_process()
for kind in ("memory", "disk"):
    a_run_goes_on_with_more_or_fewer_ranks(Path(sys.argv[1]), kind)
print(f"rank {ranks.rank}: all the same")
