"""PM-MoE's Theorem 3.1, from what can be measured of it."""

from dataclasses import dataclass

import numpy as np

from fedexperts.analyses.pool import Pool


@dataclass(frozen=True)
class Bound:
    """M modules are right with probability p, independently, and the gate gives those 1 + α times the weight of others.

    The mixture is then right with a probability of at least (1 + α)·p / (1 + α·(p + (1 − p)/M)), which is above p.
    """

    right: float  # p: the mean accuracy of the pool's modules, each in the place of a client's own
    on_right: float  # mean weight of a module that is right
    on_wrong: float  # and of one that is wrong
    modules: float  # M
    spread: float  # variance over the samples of the part of the modules that is right, over that if independent
    samples: int

    @property
    def alpha(self) -> float:
        return self.on_right / self.on_wrong - 1 if self.on_wrong else np.inf

    @property
    def least(self) -> float:
        """The accuracy that the theorem promises; both of its sides times the weight on a module that is wrong."""
        part = self.right + (1 - self.right) / self.modules
        return self.on_right * self.right / (self.on_wrong + (self.on_right - self.on_wrong) * part)

    @property
    def independent(self) -> bool:
        """Whether modules could be right independently of each other, to three standard errors of the spread."""
        return bool(abs(self.spread - 1) <= 3 * np.sqrt(2 / self.samples))


def bound(pool: Pool) -> Bound | None:
    """Over all test samples; None where the theorem has no p and α: all modules always right, or always wrong."""
    p = pool.mean(pool.right)
    if not 0 < p < 1:
        return None
    some = pool.has.any(axis=1)
    modules, samples = pool.has.sum(axis=1)[some], np.nanmax(pool.samples[some], axis=1)
    share, square = (
        np.average(np.nansum(one[some], axis=1) / modules, weights=samples) for one in (pool.right, pool.right_together)
    )
    return Bound(
        right=p,
        on_right=pool.mean(pool.weight_right) / p,
        on_wrong=pool.mean(pool.weight - pool.weight_right) / (1 - p),
        modules=float(modules.mean()),
        spread=float((square - share**2) * modules.mean() / (p * (1 - p))),
        samples=int(samples.sum()),
    )
