"""Train many clients at once or one by one; rounds; saved state."""

from fedexperts.engine.batches import DeviceData, scaled
from fedexperts.engine.cohort import Cohort, Job
from fedexperts.engine.observer import Evaluation, Observer
from fedexperts.engine.rounds import Simulation, specs_for

__all__ = ["Cohort", "DeviceData", "Evaluation", "Job", "Observer", "Simulation", "scaled", "specs_for"]
