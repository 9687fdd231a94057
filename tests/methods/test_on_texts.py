"""Every method trains on texts: their words are whole numbers, not pixels."""

import pytest
import torch
from support import assert_close, finished, make_simulation, make_text_task, sentences, states

from fedexperts.engine import Simulation
from fedexperts.methods import registry
from fedexperts.task import Task

TASK = make_text_task()


@pytest.mark.parametrize("name", registry())
def test_together_equals_one_by_one(name: str) -> None:
    expected = states(finished(name, TASK))
    for executor in ("stacked", "workers"):
        assert_close(states(finished(name, TASK, executor=executor)), expected)


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedmoe"])
def test_methods_learn(name: str) -> None:
    task = Task.of(dataset=sentences(600), clients=4, partition="dirichlet", alpha=1)
    values = {"rounds": 15, "optimizer": "adam", "lr": 0.03, "participation": 1.0, "precision": "float32"}
    simulation = make_simulation(name, task, **values)
    before = share_right(simulation)
    simulation.run()
    assert before < 0.5
    assert share_right(simulation) > 0.95


def share_right(simulation: Simulation) -> float:
    found = simulation.evaluate()
    return sum(result.test_correct for result in found) / sum(result.test_samples for result in found)


@pytest.mark.parametrize("model", ["fasttext", "fasttext-wide"])
def test_an_expert_is_what_follows_the_mean_embedding(model: str) -> None:
    own = finished("fedmoe-da", make_text_task(model), rounds=1).client_state(0)
    assert {name for name in own if name.startswith("embedding.")} == {"embedding.words.weight"}
    layers = {name.split(".")[2] for name in own if name.startswith("experts.")}
    assert layers == ({"head"} if model == "fasttext" else {"fc1", "head"})


def test_a_gate_on_a_text_has_an_embedding_of_its_own() -> None:
    own = finished("fedmoe", TASK, rounds=1).client_state(0)
    assert own["gate.0.weight"].shape == (TASK.shape[1], 32)


def test_a_fixed_gate_weighs_features_not_words() -> None:
    simulation = make_simulation("fedmoe", TASK, options={"gate_fixed": 0.25})
    before = {name: tensor.clone() for name, tensor in simulation.server.items()}
    simulation.step()
    assert all(not torch.equal(tensor, before[name]) for name, tensor in simulation.server.items())
