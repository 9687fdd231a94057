"""Runs on data that move."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support import Scores, assert_close, assert_same_bits, make_simulation, states

from fedexperts.engine import Simulation
from fedexperts.engine.batches import Portion
from fedexperts.task import Task

TASK = Task.of(data="digits", samples=1000, clients=4, drift="sudden", phases=2, classes_per_client=2)
VALUES = {"rounds": 4, "participation": 1.0, "lr": 0.1}


def test_a_round_trains_and_tests_on_the_data_of_that_round() -> None:
    seen: list[set[int]] = []

    class Watching(Simulation):
        def _held_out(self, client: int) -> np.ndarray:
            if client == 0:
                seen.append(set(super()._held_out(client).tolist()))
            return super()._held_out(client)

    simulation = make_simulation("standalone", TASK, simulation=Watching, **VALUES)
    for now in range(1, 5):
        seen.clear()
        simulation.step()
        phase = TASK.phases[0 if now <= 2 else 1][0]
        assert set(simulation.batches.take(0, now, 0, Portion(1)).flat) == set(phase.train.tolist())
        assert all(held_out == {*phase.validation.tolist(), *phase.test.tolist()} for held_out in seen)
        assert seen


def test_accuracy_falls_when_the_data_change_and_comes_back() -> None:
    scores = Scores()
    make_simulation("standalone", TASK, observers=(scores,), **VALUES | {"rounds": 20}).run()
    means = [np.mean([e.test_correct / e.test_samples for e in results]) for results in scores.found]
    assert means[9] > 0.9
    assert means[10] < means[9] - 0.3
    assert means[19] > 0.9


@pytest.mark.parametrize("drift", ["sudden", "gradual"])
def test_together_equals_one_by_one_and_resumed_equals_whole(drift: str, tmp_path: Path) -> None:
    task = Task.of(data="digits", samples=200, clients=4, drift=drift, phases=2, classes_per_client=2)
    whole = make_simulation("fedmoe", task, folder=tmp_path / "whole", **VALUES)
    whole.step()
    whole.step()
    whole.checkpoint()
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    whole.run()
    stacked = make_simulation("fedmoe", task, executor="stacked", **VALUES)
    stacked.run()
    assert_close(states(stacked), states(whole))
    resumed = make_simulation("fedmoe", task, folder=tmp_path / "broken", **VALUES)
    resumed.restore()
    assert resumed.round == 2
    resumed.run()
    assert_same_bits(states(resumed), states(whole))
