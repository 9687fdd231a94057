"""Train many clients at once or one by one; rounds; saved state."""

from fedexperts.engine.batches import DeviceData, scaled
from fedexperts.engine.cohort import Cohort, Job, Query
from fedexperts.engine.observer import Evaluation, Observer
from fedexperts.engine.rounds import Simulation, specs_for

__all__ = ["Cohort", "DeviceData", "Evaluation", "Job", "Observer", "Query", "Simulation", "scaled", "specs_for"]
