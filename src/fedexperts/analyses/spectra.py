"""The singular values of FedEMoE's sub-experts, and what they say of each (its Figure 3)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedexperts.analyses.tables import read_table
from fedexperts.measure import Record
from fedexperts.methods.evolution import SPECTRA, SPECTRUM, Rules
from fedexperts.methods.fedemoe import FedEMoE
from fedexperts.methods.growth import Health, health_of

UNDER, NORMAL, OVER = "under-fitting", "normal", "over-fitting"


@dataclass(frozen=True)
class Spectrum:
    """What is known of a sub-expert."""

    leaf: int
    threshold: float  # v_t at the end of the run
    values: list[Tensor]  # of each of its matrices, the largest first
    seen: Health
    label: str

    @classmethod
    def of(cls, leaf: int, threshold: float, values: list[Tensor], rules: Rules) -> "Spectrum":
        seen = health_of(values, rules.energy, rules.tail_share)
        return cls(leaf, threshold, values, seen, label(seen, threshold, rules))


def label(seen: Health, threshold: float, rules: Rules) -> str:
    """As Figure 3 has it: a heavy tail is over-fitting, a low effective rank under-fitting.

    That is not always what the server does: by the paper's rule a sub-expert expands when its rank is *high*.
    """
    if seen.tail > rules.tail_limit:
        return OVER
    return UNDER if seen.rank < threshold else NORMAL


def load_spectra(record: Record) -> list[Spectrum] | None:
    """What a run has left in its folder; None if it has no such shared expert."""
    found = read_table(record.folder, SPECTRA, None, SPECTRUM)
    if found is None:
        return None
    rules = FedEMoE.Options.check(record.settings.options)
    values: dict[tuple[int, float], dict[int, list[float]]] = {}
    for leaf, threshold, number, _, value in found[1].tolist():
        values.setdefault((int(leaf), threshold), {}).setdefault(int(number), []).append(value)
    return [
        Spectrum.of(leaf, threshold, [torch.tensor(one, dtype=torch.float64) for one in own.values()], rules)
        for (leaf, threshold), own in values.items()
    ]
