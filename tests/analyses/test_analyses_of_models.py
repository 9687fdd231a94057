"""Analyses that ask the models of a real run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support import finished, make_task

from fedexperts import analyses
from fedexperts.analyses import SampleTable, embed, gate_weights
from fedexperts.engine import Simulation
from fedexperts.errors import MethodError, SavedStateError, SettingsError
from fedexperts.methods import method_class

CLIENTS = 6


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return finished("fedmoe", make_task(), options={"gate_width": [4, 8]}, rounds=2)


def test_weights_are_those_of_every_clients_own_gate(simulation):
    table = gate_weights(simulation)
    assert table.names == ("global", "local")
    assert table.values.shape == (8 * CLIENTS, 2)
    method = method_class("fedmoe")(options={"gate_width": [4, 8]})
    for client, own in enumerate(simulation.task.clients):
        mine = table.clients == client
        np.testing.assert_array_equal(table.samples[mine], own.test)
        np.testing.assert_array_equal(table.classes[mine], simulation.task.dataset.labels[own.test])
        parts = method.parts(simulation.specs[client])
        state = simulation.client_state(client)
        gate = parts["gate"].double().eval()
        gate.load_state_dict({n.removeprefix("gate."): t for n, t in state.items() if n.startswith("gate.")})
        images = torch.from_numpy(simulation.task.dataset.inputs[own.test]).double() / 127.5 - 1
        with torch.no_grad():
            np.testing.assert_allclose(table.values[mine], gate(images).numpy(), atol=1e-9)
    assert table.values.std() > 0.01


def test_a_method_without_experts_is_named():
    with pytest.raises(MethodError, match="Standalone \\(standalone\\) weighs no experts"):
        gate_weights(finished("standalone", make_task(), rounds=1))


def test_plane_has_some_samples_of_each_chosen_client(simulation):
    table = embed(simulation, [4, 1, 0], samples=5)
    assert table.names == ("x", "y")
    assert table.clients.tolist() == [4] * 5 + [1] * 5 + [0] * 5
    for client in (0, 1, 4):
        own = table.samples[table.clients == client]
        assert len(set(own)) == 5
        assert set(own) <= set(simulation.task.clients[client].test)
    assert np.isfinite(table.values).all()
    assert len(embed(simulation, [0, 1], samples=50).samples) == 16  # all that they have


def test_the_same_run_gives_the_same_bytes(simulation, tmp_path):
    for name in ("a.csv", "b.csv"):
        embed(simulation, range(CLIENTS), samples=8).save(tmp_path / name)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_looking_changes_nothing(simulation):
    before = {name: tensor.clone() for name, tensor in simulation.client_state(2).items()}
    gate_weights(simulation)
    embed(simulation, [2], samples=4)
    after = simulation.client_state(2)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_plane_needs_features_of_one_width_and_a_few_samples(simulation):
    mixed = finished("standalone", make_task(model="cnn5,cnn-pm"), rounds=1)
    with pytest.raises(MethodError, match="client 0 has 500, client 1 has 512"):
        embed(mixed, [0, 1])
    assert len(embed(mixed, [0, 2]).samples) == 16
    with pytest.raises(SettingsError, match="at least 4 samples, these clients give 3"):
        embed(simulation, [0], samples=3)


# --- the file


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = SampleTable(
        np.array([0, 3]), np.array([1, 2]), np.array([7, 9]), ("a", "b"), np.array([[0.25, 0.75], [1.0, 1e-7]])
    )
    table.save(tmp_path / analyses.GATES)
    assert (tmp_path / analyses.GATES).read_text() == "client,class,sample,a,b\n0,1,7,0.25,0.75\n3,2,9,1,1e-07\n"
    found = SampleTable.load(tmp_path, analyses.GATES, "gates")
    assert found is not None
    assert found.names == table.names
    for field in ("clients", "classes", "samples", "values"):
        np.testing.assert_array_equal(getattr(found, field), getattr(table, field))


def test_what_was_never_made_is_none(tmp_path):
    assert SampleTable.load(tmp_path, analyses.GATES, "gates") is None
    assert SampleTable.load(None, analyses.GATES, "gates") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "client,class,sample,a\n",
        "client,class,sample,a\n1,2\n",
        "client,class,sample,a\n1,2,3,x\n",
        "client,class,sample,a\n1,2,3,nan\n",
        "round,class,sample,a\n1,2,3,4\n",
    ],
)
def test_a_broken_table_says_how_to_make_it_again(tmp_path: Path, text: str):
    (tmp_path / analyses.GATES).write_text(text)
    with pytest.raises(SavedStateError, match=r"cut off or changed.*make it again: fedexperts analyse gates"):
        SampleTable.load(tmp_path, analyses.GATES, "gates")
