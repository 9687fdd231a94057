"""What makes FedRep itself."""

from collections.abc import Sequence

import torch
from support import make_simulation, make_task

from fedexperts.config import TrainSettings
from fedexperts.engine import Observer
from fedexperts.methods import Channel, Message, Round, Stage
from fedexperts.methods.fedrep import FedRep

TASK = make_task("cnn5/8")
NOW = Round(1, 3, seed=0)


def test_the_head_has_epochs_of_its_own() -> None:
    head, extractor = FedRep(TrainSettings.check({"epochs": 2}), {"head_epochs": 7}).stages(NOW)
    assert (head.parts, head.epochs) == (("head",), 7)
    assert (extractor.parts, extractor.epochs) == (("extractor",), 2)
    assert FedRep().stages(NOW)[0].epochs == 10


def test_the_head_comes_first_with_the_extractor_that_was_sent_and_stays_while_that_is_trained() -> None:
    class HeadOnly(FedRep):
        def stages(self, now: Round) -> Sequence[Stage]:
            return super().stages(now)[:1]

    whole, half = (make_simulation(kind, TASK, participation=1.0) for kind in (FedRep, HeadOnly))
    before = half.server
    for simulation in (whole, half):
        simulation.step()
    for client in range(6):
        assert torch.equal(whole.client_state(client)["head.weight"], half.client_state(client)["head.weight"])
    torch.testing.assert_close(half.server, before)
    assert not torch.equal(whole.server["extractor.fc1.weight"], before["extractor.fc1.weight"])


def test_only_the_extractor_travels_and_heads_differ() -> None:
    seen: set[str] = set()

    class Names(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            seen.update(name.partition(".")[0] for name in message.tensors)

    simulation = make_simulation("fedrep", TASK, participation=1.0, observers=(Names(),))
    simulation.step()
    assert seen == {"extractor"}
    states = [simulation.client_state(client) for client in range(6)]
    assert len({state["head.bias"][0].item() for state in states}) == 6
    assert len({state["extractor.fc1.bias"][0].item() for state in states}) == 1
