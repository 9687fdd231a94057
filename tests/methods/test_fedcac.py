"""What makes FedCAC itself."""

import pytest
import torch
from support import assert_close, finished, make_simulation, make_task

from fedexperts.engine import Observer
from fedexperts.methods import Channel, Message, Reply, Round
from fedexperts.methods.fedcac import FedCAC, overlaps, packed, unpacked

TASK = make_task("cnn5/8")


class Messages(Observer):
    """What was sent in the last round."""

    def __init__(self) -> None:
        self.up: dict[int, Message] = {}
        self.down: dict[int, Message] = {}

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        (self.up if channel is Channel.UP else self.down)[client] = message


@pytest.mark.parametrize("shape", [(1,), (8,), (3, 7), (2, 200)])
def test_a_mask_is_a_bit_for_each_parameter(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))) < 0.5
    bits = packed(mask)
    assert bits.dtype == torch.uint8
    assert bits.shape == (*shape[:-1], -(-shape[-1] // 8))
    assert torch.equal(unpacked(bits, shape[-1]), mask)


def test_critical_is_what_moved_and_weighs_most() -> None:
    trained = torch.tensor([[1.0, -8.0, 3.0, 0.1, 5.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    moved = torch.tensor([[0.3, 0.1, 0.0, 9.0, -0.1, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, -0.7]])
    # |Δθ·θ| is 0.3, 0.8, 0, 0.9, 0.5, 0 of one client and 0.7, the last, of another.
    marks = {
        tau: FedCAC(options={"critical": tau}).critical(trained, trained - moved).int().tolist()
        for tau in (0.1, 0.5, 1.0)
    }
    assert marks[0.1] == [[0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1]]
    assert marks[0.5] == [[0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]]
    assert marks[1.0] == [[1, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]]


def reply(client: int, *critical: int) -> Reply:
    """A client with eight parameters, all of its number."""
    mask = torch.zeros(8, dtype=torch.bool)
    mask[list(critical)] = True
    return Reply(
        client, Message({"head.bias": torch.full((8,), float(client)), "mask.head.bias": packed(mask)}, {"samples": 1})
    )


REPLIES = [reply(0, 0, 1, 2, 3), reply(1, 0, 1, 2, 4), reply(2, 4, 5, 6, 7), reply(3, 3, 5, 6, 7)]


def test_overlap_is_the_papers() -> None:
    masks = torch.stack([unpacked(reply.message.tensors["mask.head.bias"], 8) for reply in REPLIES])
    expected = [[1 - (a - b).abs().sum() / (2 * 4) for b in masks.double()] for a in masks.double()]
    torch.testing.assert_close(overlaps(masks), torch.tensor(expected).double())
    differing = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0]]).bool()
    torch.testing.assert_close(overlaps(differing)[0, 1], torch.tensor(0.5).double())


@pytest.mark.parametrize(
    ("number", "partners"),
    [
        (1, {0: {1}, 1: {0}, 2: {3}, 3: {2}}),  # O_avg is 0.375, O_max 0.75
        (4, {0: {1}, 1: {0}, 2: {3}, 3: {2}}),  # β: those with the most in common
        (5, {0: set(), 1: set(), 2: set(), 3: set()}),
        (40, {0: set(), 1: set(), 2: set(), 3: set()}),  # nobody's overlap is so large, not even the one with itself
    ],
)
def test_critical_parameters_come_from_those_with_the_same_ones_and_later_from_nobody(
    number: int, partners: dict[int, set[int]]
) -> None:
    method, now = FedCAC(options={"beta": 4}), Round(number, 9, seed=0)
    server = method.combine({"head.bias": torch.zeros(8)}, REPLIES, now)
    assert torch.equal(server["head.bias"], torch.full((8,), 1.5))
    for client, others in partners.items():
        shared = sum([client, *others]) / (1 + len(others))
        mask = unpacked(REPLIES[client].message.tensors["mask.head.bias"], 8)
        sent = method.send(server, TASK.spec(client), now).tensors
        torch.testing.assert_close(sent["head.bias"], torch.where(mask, shared, 1.5))
        assert server[f"critical.{client}"].numel() == 4  # of eight: no whole model for each client
    assert torch.equal(method.send(server, TASK.spec(5), now).tensors["head.bias"], server["head.bias"])


def test_the_server_sends_a_model_and_a_client_a_model_and_its_bits() -> None:
    messages = Messages()
    simulation = make_simulation("fedcac", TASK, participation=1.0, observers=(messages,))
    for _ in range(2):
        before = {client: message.tensors for client, message in messages.down.items()}
        simulation.step()
    sizes = {client: message.parameters for client, message in messages.down.items()}
    assert set(sizes.values()) == {sum(tensor.numel() for tensor in before[0].values())}
    sent = messages.up[1].tensors
    bits = sum(tensor.numel() for name, tensor in sent.items() if name.startswith("mask."))
    assert messages.up[1].parameters == sizes[1] + bits
    assert sizes[1] / 8 <= bits < sizes[1] / 8 + len(before[0])
    # The mask is of what the client's own training changed of what it got.
    got = messages.down[1].tensors["head.weight"]
    mask = unpacked(sent["mask.head.weight"], got.numel()).view_as(got)
    sensitivity = ((sent["head.weight"] - got) * sent["head.weight"]).abs()
    assert sensitivity[mask].min() > sensitivity[~mask].max()
    assert int(mask.sum()) == mask.numel() // 2
    assert not torch.equal(got, messages.down[2].tensors["head.weight"])


def test_when_all_are_partners_and_all_is_critical_it_is_fedavg_with_equal_weights() -> None:
    class Together(FedCAC):
        name = "together"

        def shares(self, overlap: torch.Tensor, now: Round) -> torch.Tensor:
            return torch.full_like(overlap, 1 / len(overlap))

    task = make_task("cnn5/8", sizes=(16, 16, 16))
    found = finished(Together, task, participation=1.0, options={"critical": 1.0})
    expected = finished("fedavg", task, participation=1.0)
    for client in range(3):
        assert_close(found.client_state(client), expected.client_state(client))
