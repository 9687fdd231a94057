"""What makes FedGH itself."""

import pytest
import torch
from support import assert_same_bits, by_class, finished, make_simulation, make_task
from torch.nn import functional as F

from fedexperts.config import TrainSettings
from fedexperts.engine import Observer
from fedexperts.methods import Channel, Message, Model, Reply, Round, State, Trained
from fedexperts.methods.at_server import shuffled
from fedexperts.methods.fedgh import FedGH
from fedexperts.methods.message import inside
from fedexperts.task import ClientSpec

NOW = Round(2, 10, seed=0)
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=3, samples=100)
SERVER = {"head.weight": torch.randn(3, 5, generator=torch.Generator().manual_seed(1)), "head.bias": torch.zeros(3)}


def reply(client: int, counts: list[int]) -> Reply:
    """A client whose features are far apart by class."""
    noise = torch.randn(3, 5, generator=torch.Generator().manual_seed(client))
    trained = Trained(SPEC, {}, {}, by_class(torch.tensor(counts), torch.eye(3, 5) * 4 + noise))
    return Reply(client, FedGH().reply(trained, NOW))


def test_a_step_for_each_mean_that_came() -> None:
    found = FedGH(TrainSettings.check({"lr": 0.3})).combine(SERVER, [reply(1, [0, 7, 0])], NOW)
    x = reply(1, [0, 7, 0]).message.tensors["features.means"][0]
    error = (SERVER["head.weight"] @ x + SERVER["head.bias"]).softmax(0) - torch.tensor([0.0, 1.0, 0.0])
    torch.testing.assert_close(found["head.weight"], SERVER["head.weight"] - 0.3 * error[:, None] * x)
    torch.testing.assert_close(found["head.bias"], -0.3 * error)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_its_steps_are_those_of_sgd(size: int) -> None:
    replies = [reply(0, [1, 1, 0]), reply(1, [0, 2, 3]), reply(2, [4, 0, 1]), reply(3, [0, 0, 1])]
    options = {"server_lr": 0.2, "server_epochs": 4, "server_batch": size}
    found = FedGH(options=options).combine(SERVER, replies, NOW)
    rows = [torch.cat([r.message.tensors[f"features.{what}"] for r in replies]) for what in ("means", "classes")]
    head = torch.nn.Linear(5, 3)
    head.load_state_dict(inside(SERVER, "head"))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.2)
    for order in shuffled(7, 4, NOW.stream("head"), torch.device("cpu")):
        for index in order.split(size):  # the last step has fewer
            means, classes = (row[index] for row in rows)
            optimizer.zero_grad()
            F.cross_entropy(head(means), classes).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert found.keys() == SERVER.keys()
    for name, tensor in head.state_dict().items():
        torch.testing.assert_close(found[f"head.{name}"], tensor)


def test_the_head_learns_all_clients_means_with_a_rate_of_the_servers() -> None:
    replies = [reply(0, [1, 1, 0]), reply(1, [0, 2, 3]), reply(2, [4, 0, 1])]
    head = FedGH(options={"server_lr": 0.5, "server_epochs": 30, "server_batch": 2}).combine(SERVER, replies, NOW)
    for sent in (reply.message.tensors for reply in replies):
        answers = sent["features.means"] @ head["head.weight"].T + head["head.bias"]
        assert answers.argmax(1).tolist() == sent["features.classes"].tolist()


def test_the_servers_steps_are_repeated_exactly_and_in_another_order_in_another_round() -> None:
    replies = [reply(0, [1, 1, 1]), reply(1, [1, 1, 1])]
    before = {name: tensor.clone() for name, tensor in SERVER.items()}

    def combined(now: Round) -> State:
        return FedGH().combine(SERVER, replies, now)

    assert_same_bits(combined(NOW), combined(NOW))
    assert not torch.equal(combined(NOW)["head.weight"], combined(Round(3, 10, seed=0))["head.weight"])
    assert_same_bits(SERVER, before)
    assert FedGH().combine(SERVER, [], NOW) is SERVER


def test_means_go_up_the_head_comes_down_and_five_extractors_stay() -> None:
    seen: dict[Channel, set[str]] = {Channel.UP: set(), Channel.DOWN: set()}

    class Names(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            seen[channel] |= set(message.tensors)

    simulation = finished("fedgh", make_task("heterogeneous"), observers=(Names(),), executor="stacked")
    assert seen[Channel.UP] == {"features.classes", "features.counts", "features.means"}
    assert seen[Channel.DOWN] == {"head.weight", "head.bias"}
    assert simulation.note == ""
    widths = [len(simulation.client_state(k)["extractor.fc1.bias"]) for k in range(6)]
    assert widths == [2000, 2000, 1000, 800, 500, 2000]
    for client in range(6):
        assert torch.equal(simulation.client_state(client)["head.weight"], simulation.server["head.weight"])


def test_a_client_sends_the_mean_features_of_its_trained_extractor() -> None:
    sent: dict[int, Message] = {}

    class Uploads(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            if channel is Channel.UP:
                sent[client] = message

    task = make_task()
    simulation = make_simulation("fedgh", task, participation=1.0, observers=(Uploads(),))
    simulation.step()
    for client, message in sent.items():
        model = Model(simulation.method.parts(simulation.specs[client])).double().eval()
        model.load_state_dict(simulation.client_state(client))
        index = torch.from_numpy(task.clients[client].train)
        features, labels = model.extractor(simulation.data.x(index)).detach(), simulation.data.y(index)
        rows = zip(message.tensors["features.classes"], message.tensors["features.means"], strict=True)
        for label, mean in rows:
            torch.testing.assert_close(mean, features[labels == label].mean(0))
