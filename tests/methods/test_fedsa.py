"""What makes FedSA itself."""

import pytest
import torch
from support import assert_same_bits, by_class, finished, make_simulation, make_task, states
from torch.nn import functional as F

from fedexperts.engine import Observer
from fedexperts.errors import MethodError
from fedexperts.methods import Batch, Channel, Message, Model, Reply, Round, Trained
from fedexperts.methods.fedsa import FedSA, mean_gap
from fedexperts.task import ClientSpec

TASK = make_task("cnn5,cnn4")
NOW = Round(2, 10, seed=0)
SPEC = ClientSpec(id=0, model="cnn4", shape=(1, 8, 8), classes=4, samples=100)


def reply(client: int, counts: list[int], means: list[list[float]]) -> Reply:
    trained = Trained(SPEC, {}, {}, by_class(torch.tensor(counts).float(), torch.tensor(means)))
    return Reply(client, FedSA().reply(trained, NOW))


def test_the_loss_pulls_to_anchors_keeps_classes_apart_and_calibrates_the_head() -> None:
    torch.manual_seed(0)
    method = FedSA(options={"pull": 3.0, "contrast": 0.5, "calibration": 2.0})
    model = Model(method.parts(SPEC)).double()
    model.margin.width.fill_(0.7)
    batch = Batch(torch.randn(5, 1, 8, 8).double(), torch.tensor([0, 0, 1, 2, 3]))
    anchors = torch.randn(4, 500).double()
    features = model.extractor(batch.x)
    task = F.cross_entropy(model.head(features), batch.y)
    distance = torch.stack([(f - anchors[c]).square().mean() for f, c in zip(features, batch.y, strict=True)]).mean()
    scores = torch.exp(-torch.cdist(features, anchors) - 0.7 * F.one_hot(batch.y, 4))
    contrast = -(scores[range(5), batch.y] / scores.sum(1)).log().mean()
    calibration = -model.head(anchors).log_softmax(1).diagonal().mean()
    expected = task + 3 * distance + 0.5 * contrast + 2 * calibration
    torch.testing.assert_close(method.loss(model, batch, {"anchors.rows": anchors}), expected)


def test_anchors_move_towards_the_mean_prototype_and_stay_where_nobody_has_the_class() -> None:
    server = {"anchors.rows": torch.tensor([[10.0, 10.0], [1.0, 1.0], [9.0, 9.0]])}
    first, second = reply(0, [1, 0, 0], [[0.0, 4], [0, 0], [0, 0]]), reply(1, [99, 2, 0], [[8.0, 0], [3, 5], [0, 0]])
    after = FedSA(options={"anchor_momentum": 0.75}).combine(server, [first, second], NOW)
    torch.testing.assert_close(after["anchors.rows"], torch.tensor([[8.5, 8.0], [1.5, 2.0], [9.0, 9.0]]))
    assert torch.equal(FedSA().combine(server, [], NOW)["anchors.rows"], server["anchors.rows"])


def test_the_gap_is_the_mean_distance_to_the_nearest_other_class() -> None:
    rows, there = torch.tensor([[0.0, 0], [3, 4], [0, 6], [1, 1]]), torch.tensor([True, True, True, False])
    torch.testing.assert_close(mean_gap(rows, there), torch.tensor([5.0, 13.0**0.5, 13.0**0.5]).mean())
    assert mean_gap(rows, torch.tensor([True, False, False, False])) == 0


def test_the_margin_is_the_clients_own_gap_or_that_of_the_anchors() -> None:
    simulation = make_simulation("fedsa", TASK, participation=1.0)
    assert all(simulation.fleet.kept(client)["margin.own"] == 0 for client in range(6))
    simulation.step()
    everyones = mean_gap(simulation.server["anchors.rows"], torch.ones(4, dtype=torch.bool))
    for client, data in enumerate(TASK.clients):
        own = simulation.fleet.kept(client)["margin.own"]
        model = Model(simulation.method.parts(simulation.specs[client])).double().eval()
        model.load_state_dict(simulation.client_state(client))
        index = torch.from_numpy(data.train)
        features, labels = model.extractor(simulation.data.x(index)).detach(), simulation.data.y(index)
        prototypes = torch.stack([features[labels == c].mean(0) for c in labels.unique()])
        torch.testing.assert_close(own, mean_gap(prototypes, torch.ones(len(prototypes), dtype=torch.bool)))
        torch.testing.assert_close(model.margin.width, own.maximum(everyones))
    message = Message(simulation.server)
    wide = everyones + 1
    assert simulation.method.receive({"margin.own": wide}, message) == {"margin.width": wide}


def test_with_no_weights_it_is_standalone() -> None:
    free = states(finished("fedsa", TASK, options={"pull": 0.0, "contrast": 0.0, "calibration": 0.0}))
    models = {n: t for n, t in free.items() if "server" not in n and "margin" not in n}
    assert_same_bits(models, states(finished("standalone", TASK)))


def test_anchors_go_down_to_three_models_and_prototypes_come_up() -> None:
    seen: dict[Channel, set[str]] = {Channel.UP: set(), Channel.DOWN: set()}

    class Names(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            seen[channel] |= set(message.tensors)

    simulation = finished("fedsa", make_task("cnn5,cnn4,cnn3"), observers=(Names(),), executor="stacked")
    assert seen[Channel.UP] == {"prototypes.classes", "prototypes.counts", "prototypes.means"}
    assert seen[Channel.DOWN] == {"anchors.rows"}
    assert simulation.note == ""


def test_clients_features_come_to_lie_nearest_to_their_classes_anchors() -> None:
    values = {"options": {"predict_with": "anchors"}, "participation": 1.0}
    simulation = make_simulation("fedsa", TASK, rounds=4, epochs=5, lr=0.1, **values)
    before = sum(result.test_correct for result in simulation.evaluate())
    simulation.run()
    assert before < 20 < 40 < sum(result.test_correct for result in simulation.evaluate())  # of 48


def test_features_of_different_width_are_refused_by_name() -> None:
    with pytest.raises(MethodError, match=r"fedsa compares features, .* the width 512 and another's 500"):
        make_simulation("fedsa", make_task("cnn5,cnn-pm"), participation=1.0).step()
