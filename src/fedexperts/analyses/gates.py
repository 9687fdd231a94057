"""How much each expert counts, for every test sample of every client (FedMoE's Figures 9 and 10)."""

import numpy as np

from fedexperts.analyses.samples import SampleTable, ask_clients
from fedexperts.engine import Simulation
from fedexperts.errors import MethodError
from fedexperts.measure import Record
from fedexperts.methods import method_class

GATES = "gates.csv"


def weighs(record: Record) -> bool:
    """Whether the run's method weighs experts."""
    return bool(method_class(record.settings.method)(options=record.settings.options).experts)


def gate_weights(simulation: Simulation) -> SampleTable:
    """A weight for each of the method's experts, from the models as they are now."""
    method = simulation.method
    if not method.experts:
        raise MethodError(f"{method.title} ({method.name}) weighs no experts: it has no gate to look at")
    tests = {client: own.test for client, own in enumerate(simulation.task.clients)}
    weights = np.concatenate(ask_clients(simulation, method.weigh, tests))
    return SampleTable.of(simulation, tests, tuple(method.experts), weights)
