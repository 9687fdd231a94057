"""What makes LG-FedAvg itself."""

import torch
from support import finished, make_task, states

from fedexperts.engine import Observer
from fedexperts.methods import Channel, Message


class Names(Observer):
    """Which tensors travelled."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        self.seen |= set(message.tensors)


def test_only_the_head_travels_and_five_extractors_keep_their_shapes() -> None:
    names = Names()
    task = make_task("heterogeneous")
    simulation = finished("lg-fedavg", task, observers=(names,), executor="stacked")
    assert names.seen == {"head.weight", "head.bias"}
    assert simulation.note == ""
    widths = [len(simulation.client_state(k)["extractor.fc1.bias"]) for k in range(6)]
    assert widths == [2000, 2000, 1000, 800, 500, 2000]


def test_all_have_one_head_and_each_its_own_extractor() -> None:
    found = states(finished("lg-fedavg", make_task("cnn5/8"), participation=1.0))
    for client in range(1, 6):
        assert torch.equal(found[f"{client}/head.weight"], found["server/head.weight"])
        assert not torch.equal(found[f"{client}/extractor.fc1.weight"], found["0/extractor.fc1.weight"])


def test_heads_of_different_widths_need_a_common_model() -> None:
    simulation = finished("lg-fedavg", make_task("cnn-pm,cnn5"), rounds=1)
    assert simulation.note == "lg-fedavg needs one model for all clients: all run cnn5"
