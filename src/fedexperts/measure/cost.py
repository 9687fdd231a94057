"""What a run had spent when it first reached an accuracy: rounds, traffic, FLOPs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np

from fedexperts.measure.figures import totals
from fedexperts.measure.record import Record
from fedexperts.methods import Channel


@dataclass(frozen=True)
class Cost:
    """Spent by all clients together until the end of a round."""

    round: int
    parameters: int  # sent up, down and between clients
    bytes: int  # the same on the wire
    flops: int


def cost_until(record: Record, target: float) -> Cost | None:
    """The cost of a mean test accuracy over the clients, in percent; None if the run never reaches it.

    It counts as reached at the end of the first evaluated round that has it, so a run that is evaluated seldom
    looks dearer than it is.
    """
    reached = np.flatnonzero(record.curve.means() >= target / 100 - 1e-12)
    if not len(reached):
        return None
    end = int(record.curve.rounds[reached[0]])
    spent = totals([row for row in record.rows if (row["round"] or 0) <= end])
    return Cost(
        round=end,
        parameters=sum(spent[f"{channel}_parameters"] for channel in Channel),
        bytes=sum(spent[f"{channel}_bytes"] for channel in Channel),
        flops=spent["flops"],
    )


def common_target(records: Sequence[Record]) -> int:
    """The highest whole percentage of mean test accuracy that all runs reach."""
    return floor(100 * min(record.figures["peak"].mean for record in records) + 1e-9)
