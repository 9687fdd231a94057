import pytest
import torch
from support import assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.errors import MethodError
from fedexperts.measure import History
from fedexperts.methods import method_class


def test_fedavg_gives_every_client_the_same_model() -> None:
    found = states(finished("fedavg", make_task()))
    for client in range(1, 6):
        for name in ("extractor.conv1.weight", "head.bias"):
            assert torch.equal(found[f"{client}/{name}"], found[f"0/{name}"])


def test_standalone_sends_nothing() -> None:
    history = History()
    simulation = finished("standalone", make_task(), observers=(history,))
    assert simulation.server == {}
    assert sum(row["up_bytes"] + row["down_bytes"] + row["peer_bytes"] for row in history.rows) == 0


def test_standalone_clients_do_not_touch_each_other() -> None:
    """The first three clients alone end as they do among six."""
    whole, part = make_task(), make_task(sizes=(64, 45, 33))
    part = type(part)(part.settings, whole.dataset, whole.clients[:3])
    six, three = (states(finished("standalone", task, participation=1.0)) for task in (whole, part))
    assert all(torch.equal(six[name], tensor) for name, tensor in three.items())


def test_standalone_has_another_methods_model_and_sends_nothing_of_it() -> None:
    history = History()
    for of in ("fedmoe", "fedemoe"):
        simulation = finished("standalone", make_task(), options={"of": of}, observers=(history,))
        whole = method_class(of)().parts(simulation.specs[0])
        names = {f"{part}.{name}" for part, module in whole.items() for name in module.state_dict()}
        assert simulation.client_state(0).keys() == names
        assert simulation.server == {}
    assert sum(row["up_bytes"] + row["down_bytes"] for row in history.rows) == 0


def test_standalone_with_fedpers_model_is_standalone_bit_for_bit() -> None:
    """They have the same parts, and nothing else of FedPer is left."""
    assert_same_bits(
        states(finished("standalone", make_task(), options={"of": "fedper"})),
        states(finished("standalone", make_task())),
    )


@pytest.mark.parametrize(
    ("of", "said"),
    [("gpfl", "gpfl's model does not predict"), ("pm-moe", "goes on from another run"), ("fedpre", "fedprox")],
)
def test_standalone_says_of_whom_it_can_have_no_model(of: str, said: str) -> None:
    with pytest.raises(MethodError, match=said):
        make_simulation("standalone", make_task(), options={"of": of})
