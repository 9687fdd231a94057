"""What makes FedProto itself."""

import pytest
import torch
from support import assert_same_bits, by_class, finished, make_simulation, make_task, states

from fedexperts.engine import Observer
from fedexperts.errors import MethodError
from fedexperts.methods import Batch, Channel, Message, Model, Reply, Round, Trained
from fedexperts.methods.fedproto import FedProto
from fedexperts.task import ClientSpec

TASK = make_task("cnn5,cnn4")
NOW = Round(2, 10, seed=0)
SPEC = ClientSpec(id=0, model="cnn4", shape=(1, 8, 8), classes=4, samples=100)


def reply(client: int, counts: list[float], means: list[list[float]]) -> Reply:
    trained = Trained(SPEC, {}, {}, by_class(torch.tensor(counts).float(), torch.tensor(means).float()))
    return Reply(client, FedProto().reply(trained, NOW))


def test_prototypes_are_means_by_samples_and_stay_where_nobody_has_the_class() -> None:
    server = {"prototypes.means": torch.full((3, 2), 9.0), "prototypes.known": torch.tensor([0.0, 0.0, 1.0])}
    first = reply(0, [1, 0, 0], [[0, 4], [0, 0], [0, 0]])
    second = reply(1, [3, 2, 0], [[8, 0], [1, 1], [0, 0]])
    after = FedProto().combine(server, [first, second], NOW)
    assert after["prototypes.means"].tolist() == [[6, 1], [1, 1], [9, 9]]
    assert after["prototypes.known"].tolist() == [1, 1, 1]


def test_a_client_sends_only_the_classes_that_it_has() -> None:
    sent = reply(0, [1, 0, 5], [[0, 4], [0, 0], [2, 2]]).message.tensors
    assert sent["prototypes.classes"].tolist() == [0, 2]
    assert sent["prototypes.means"].tolist() == [[0, 4], [2, 2]]


def test_the_loss_pulls_towards_known_prototypes_only() -> None:
    method, x, y = FedProto(options={"pull": 3.0}), torch.randn(6, 1, 8, 8), torch.tensor([0, 0, 1, 1, 2, 3])
    model = Model(method.parts(SPEC))
    received = {"prototypes.means": torch.randn(4, 500), "prototypes.known": torch.tensor([1.0, 0.0, 1.0, 0.0])}
    features = model.extractor(x)
    pulled = sum(((features[i] - received["prototypes.means"][y[i]]) ** 2).mean() for i in (0, 1, 4)) / 6
    free = FedProto(options={"pull": 0.0}).loss(model, Batch(x, y), received)
    assert torch.allclose(method.loss(model, Batch(x, y), received), free + 3 * pulled)


def test_prototypes_are_the_trained_models_mean_features() -> None:
    simulation = make_simulation("fedproto", TASK, participation=1.0)
    simulation.step()
    total, counts = torch.zeros(4, 500, dtype=torch.float64), torch.zeros(4)
    for client, data in enumerate(TASK.clients):
        model = Model(simulation.method.parts(simulation.specs[client])).double().eval()
        model.load_state_dict(simulation.client_state(client))
        index = torch.from_numpy(data.train)
        for label, row in zip(simulation.data.y(index), model.extractor(simulation.data.x(index)), strict=True):
            total[label] += row.detach()
            counts[label] += 1
    torch.testing.assert_close(simulation.server["prototypes.means"], total / counts[:, None])


def test_without_a_pull_it_is_standalone() -> None:
    free = states(finished("fedproto", TASK, options={"pull": 0.0}))
    assert_same_bits({n: t for n, t in free.items() if "server" not in n}, states(finished("standalone", TASK)))


def test_prediction_by_the_nearest_prototype() -> None:
    method, x = FedProto(options={"predict_with": "prototypes"}), torch.randn(5, 1, 8, 8)
    model = Model(method.parts(SPEC)).eval()
    means = torch.randn(4, 500)
    means[2] = model.extractor(x)[3].detach()
    known = torch.tensor([1.0, 1.0, 1.0, 0.0])
    answer = method.predict(model, x, {"prototypes.means": means, "prototypes.known": known})
    assert answer.argmax(1)[3] == 2
    assert (answer.argmin(1) == 3).all()  # what nobody has sent is nobody's answer


def test_only_prototypes_travel() -> None:
    sent: list[tuple[Channel, Message]] = []

    class Keep(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            sent.append((channel, message))

    finished("fedproto", TASK, observers=(Keep(),), precision="float32")
    assert {name.partition(".")[0] for _, message in sent for name in message.tensors} == {"prototypes"}
    assert max(message.parameters for _, message in sent) <= 4 * 500 + 2 * 4


def test_features_of_different_width_are_refused() -> None:
    with pytest.raises(MethodError, match="the width 512 and another's 500"):
        make_simulation("fedproto", make_task("cnn5,cnn-pm"), participation=1.0).step()
