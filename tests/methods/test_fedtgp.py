"""What makes FedTGP itself."""

import pytest
import torch
from support import assert_same_bits, by_class, finished, make_simulation, make_task, states

from fedexperts.engine import Observer
from fedexperts.errors import MethodError
from fedexperts.methods import Channel, Message, Model, Reply, Round, State, Trained
from fedexperts.methods.classwise import between_classes, margin_contrast
from fedexperts.methods.fedtgp import FedTGP, Trainer
from fedexperts.task import ClientSpec

TASK = make_task("cnn5,cnn4")
NOW = Round(2, 10, seed=0)
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)
WIDTH = 32
CENTRES = torch.nn.functional.pad(torch.tensor([[4.0, 0, 0], [4, 2, 0], [0, 4, 0], [0, 0, 4]]), (0, WIDTH - 3))
EVERYTHING = torch.ones(4, dtype=torch.bool)


def reply(client: int, counts: list[int], centres: torch.Tensor = CENTRES) -> Reply:
    noise = 0.1 * torch.randn(centres.shape, generator=torch.Generator().manual_seed(client))
    trained = Trained(SPEC, {}, {}, by_class(torch.tensor(counts).float(), centres + noise))
    return Reply(client, FedTGP().reply(trained, NOW))


def server() -> State:
    torch.manual_seed(0)
    fresh = {f"trainer.{name}": tensor for name, tensor in Trainer(4, WIDTH).state_dict().items()}
    return fresh | {"prototypes.means": torch.zeros(4, WIDTH), "prototypes.known": torch.zeros(4)}


REPLIES = [reply(0, [1, 1, 1, 0]), reply(1, [3, 0, 2, 0]), reply(2, [0, 9, 1, 0])]


def test_the_contrast_is_the_papers() -> None:
    torch.manual_seed(1)
    sent, trained, classes = torch.randn(5, 3).double(), torch.randn(4, 3).double(), torch.tensor([0, 1, 1, 3, 2])
    expected = []
    for row, c in zip(sent, classes, strict=True):
        scores = [torch.exp(-(row - trained[k]).norm() - (0.7 if k == c else 0)) for k in range(4)]
        expected.append(-(scores[c] / sum(scores)).log())
    found = margin_contrast(sent, classes, trained, torch.tensor(0.7))
    torch.testing.assert_close(found, torch.stack(expected).mean())


def test_the_margin_is_that_of_the_class_furthest_from_its_nearest_one() -> None:
    far = CENTRES.clone()
    far[3] = 1e6  # nobody sends it
    replies = [reply(k, [1, 1, 1, 0], far) for k in range(2)]
    means = torch.stack([r.message.tensors["prototypes.means"] for r in replies]).mean(0)  # all count alike
    expected = max(min((means[a] - means[b]).norm() for b in range(3) if b != a) for a in range(3))
    torch.testing.assert_close(FedTGP().margin(server(), replies), expected)
    assert FedTGP(options={"margin_limit": 2.5}).margin(server(), replies) == 2.5
    assert FedTGP().margin(server(), [reply(0, [0, 1, 0, 0])]) == 0  # one class has no distance


def test_trained_prototypes_are_those_of_their_classes_and_the_margin_moves_them_apart() -> None:
    replies = [reply(k, [1, 1, 1, 1]) for k in range(3)]
    trained, without = (
        FedTGP(options={"server_batch": 4, "margin_limit": limit}).combine(server(), replies, NOW)["prototypes.means"]
        for limit in (100.0, 0.0)
    )
    for sent in (r.message.tensors for r in replies):
        nearest = torch.cdist(sent["prototypes.means"], trained).argmin(1)
        assert nearest.tolist() == sent["prototypes.classes"].tolist()
    least = [between_classes(rows, EVERYTHING).amin() for rows in (trained, without, CENTRES)]
    assert least[0] > 1.05 * least[1] > 2 * least[2]


def test_the_servers_steps_are_repeated_exactly_and_leave_what_was_there() -> None:
    method, start = FedTGP(options={"server_epochs": 3, "server_batch": 2}), server()
    first, again = (method.combine(start, REPLIES, NOW) for _ in range(2))
    assert_same_bits(first, again)
    assert_same_bits(start, server())
    assert first.keys() == start.keys()
    later = method.combine(start, REPLIES, Round(3, 10, seed=0))
    assert not torch.equal(later["prototypes.means"], first["prototypes.means"])  # in another order
    assert method.combine(start, [], NOW) is start


def test_a_class_that_nobody_sent_is_not_known() -> None:
    assert FedTGP().combine(server(), REPLIES, NOW)["prototypes.known"].tolist() == [1, 1, 1, 0]


def test_the_trainer_stays_at_the_server_and_three_models_learn_from_what_it_makes() -> None:
    seen: dict[Channel, set[str]] = {Channel.UP: set(), Channel.DOWN: set()}

    class Names(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            seen[channel] |= set(message.tensors)

    simulation = finished("fedtgp", make_task("cnn5,cnn4,cnn3"), observers=(Names(),), executor="stacked")
    assert seen[Channel.UP] == {"prototypes.classes", "prototypes.counts", "prototypes.means"}
    assert seen[Channel.DOWN] == {"prototypes.means", "prototypes.known"}
    assert simulation.note == ""
    trainer = Trainer(4, 500).double()
    trainer.load_state_dict({n.removeprefix("trainer."): t for n, t in simulation.server.items() if "trainer" in n})
    torch.testing.assert_close(simulation.server["prototypes.means"], trainer().detach())


def test_without_a_pull_it_is_standalone() -> None:
    free = states(finished("fedtgp", TASK, options={"pull": 0.0, "server_epochs": 1}))
    assert_same_bits({n: t for n, t in free.items() if "server" not in n}, states(finished("standalone", TASK)))


def test_prediction_by_the_nearest_trained_prototype() -> None:
    method, x = FedTGP(options={"predict_with": "prototypes"}), torch.randn(5, 1, 8, 8)
    model = Model(method.parts(SPEC)).eval()
    means = torch.randn(4, 500)
    means[2] = model.extractor(x)[3].detach()
    answer = method.predict(model, x, {"prototypes.means": means, "prototypes.known": torch.ones(4)})
    assert answer.argmax(1)[3] == 2


def test_features_of_different_width_are_refused_by_name() -> None:
    with pytest.raises(MethodError, match=r"fedtgp compares features, .* the width 512 and another's 500"):
        make_simulation("fedtgp", make_task("cnn5,cnn-pm"), participation=1.0).step()
