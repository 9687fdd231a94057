"""What the mixture of all modules is worth to each client, if it chooses on validation data whether to use it."""

from dataclasses import dataclass

import numpy as np

from fedexperts.analyses.clients import Difference
from fedexperts.measure import Figure, Record
from fedexperts.methods import Method, method_class, registry
from fedexperts.methods.pm_moe import PMMoE


@dataclass(frozen=True)
class Selected:
    """The base in the round of its own run that was best on validation data, which is what may be claimed of it."""

    base: Figure
    gains: Difference  # what each client gains over it by choosing
    favoured: np.ndarray  # clients: whose validation accuracy is higher than there

    @property
    def misled(self) -> int:
        """How many lose although their validation data were for it."""
        return int((self.favoured & (self.gains.points < 0)).sum())


@dataclass(frozen=True)
class Mixture:
    """Three figures of one PM-MoE run, and who uses the mixture."""

    base: Figure  # round 1: every client with its own module alone, as the base's last round has left it
    everywhere: Figure  # the mixture for all, in the round that was best on validation data
    chosen: Figure  # the mixture for those whose validation accuracy it raises, the base for the others
    used: np.ndarray  # clients: who that is
    selected: Selected | None  # what is chosen against the base at its best; None if its own run is not at hand

    @property
    def gains(self) -> Difference:
        """What each client gains by choosing over the base's last round."""
        return Difference.between(self.chosen.clients, self.base.clients)

    @property
    def gains_everywhere(self) -> Difference:
        """What each client would gain over that if none chose."""
        return Difference.between(self.everywhere.clients, self.base.clients)


def pools(record: Record) -> bool:
    """Whether the run's clients mix a pool of modules."""
    return issubclass(registry().get(record.settings.method, Method), PMMoE)  # a method may be gone, its runs not


def base_of(record: Record) -> type[Method]:
    """The method whose modules a PM-MoE run pools."""
    return method_class(record.settings.options["base"])


def mixture(record: Record, samples: bool = False) -> Mixture | None:
    """From the run's own history; None for a run of another method, or one that was not looked at in the beginning.

    The round is the best by the plain mean over clients, or by samples.
    """
    curve = record.curve
    if not pools(record) or curve.rounds[0] != 1 or curve.rounds[-1] == 1:
        return None
    everywhere = record.figures_by(samples)["selected"]
    best = int(np.flatnonzero(curve.rounds == everywhere.round)[0])
    used = curve.validation[best] > curve.validation[0]
    validation, test = (np.where(used, scores[best], scores[0]) for scores in (curve.validation, curve.test))
    chosen = Figure.of(everywhere.round, test, curve.test_samples)
    return Mixture(curve.figure(0), everywhere, chosen, used, _against_selected(record, samples, chosen, validation))


def _against_selected(record: Record, samples: bool, chosen: Figure, validation: np.ndarray) -> Selected | None:
    """What is chosen, and the clients' validation accuracies with it, against the base's own run."""
    if (before := record.before) is None:
        return None
    base, curve = before.figures_by(samples)["selected"], before.curve
    there = curve.validation[curve.rounds == base.round][0]
    return Selected(base, Difference.between(chosen.clients, base.clients), validation > there)
