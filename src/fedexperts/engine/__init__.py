"""Train many clients at once or one by one; rounds; saved state."""

from fedexperts.engine.batches import DeviceData, scaled
from fedexperts.engine.client_model import ClientModel
from fedexperts.engine.clients import Clients
from fedexperts.engine.cohort import Cohort, Job, Query
from fedexperts.engine.divided import DividedSimulation
from fedexperts.engine.joining import Joining
from fedexperts.engine.observer import Evaluation, Observer
from fedexperts.engine.phases import TRACE, Spent
from fedexperts.engine.ranks import led, started
from fedexperts.engine.rounds import Simulation, specs_for

__all__ = [
    "TRACE", "ClientModel", "Clients", "Cohort", "DeviceData", "DividedSimulation", "Evaluation", "Job", "Joining",
    "Observer", "Query", "Simulation", "Spent", "led", "scaled", "specs_for", "started",
]  # fmt: skip
