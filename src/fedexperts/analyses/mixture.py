"""What the mixture of all modules is worth to each client, if it chooses on validation data whether to use it."""

from dataclasses import dataclass

import numpy as np

from fedexperts.analyses.clients import Difference
from fedexperts.measure import Curve, Figure, Record, best_round
from fedexperts.methods import Method, method_class, registry
from fedexperts.methods.pm_moe import PMMoE


@dataclass(frozen=True)
class Mixture:
    """Three figures of one PM-MoE run, and who uses the mixture."""

    base: Figure  # round 1: every client with its own module alone
    everywhere: Figure  # the mixture for all, in the round that was best on validation data
    chosen: Figure  # the mixture for those whose validation accuracy it raises, the base for the others
    used: np.ndarray  # clients: who that is

    @property
    def gains(self) -> Difference:
        """What each client gains over the base by choosing."""
        return Difference.between(self.chosen.clients, self.base.clients)

    @property
    def gains_everywhere(self) -> Difference:
        """What each client would gain if none chose."""
        return Difference.between(self.everywhere.clients, self.base.clients)


def pools(record: Record) -> bool:
    """Whether the run's clients mix a pool of modules."""
    return issubclass(registry().get(record.settings.method, Method), PMMoE)  # a method may be gone, its runs not


def base_of(record: Record) -> type[Method]:
    """The method whose modules a PM-MoE run pools."""
    return method_class(record.settings.options["base"])


def mixture(record: Record) -> Mixture | None:
    """From the run's own history; None for a run of another method, or one that was not looked at in the beginning."""
    curve = record.curve
    first, later = np.flatnonzero(curve.rounds == 1), np.flatnonzero(curve.rounds > 1)
    if not pools(record) or not len(first) or not len(later):
        return None
    return _choose(curve, int(first[0]), int(later[best_round(curve.validation[later])]))


def _choose(curve: Curve, first: int, best: int) -> Mixture:
    used = curve.validation[best] > curve.validation[first]
    base, everywhere = curve.figure(first), curve.figure(best)
    accuracy = np.where(used, curve.test[best], curve.test[first])
    return Mixture(base, everywhere, Figure.of(everywhere.round, accuracy, curve.test_samples), used)
