import torch
from support import finished, make_task, states

from fedexperts.measure import History


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
