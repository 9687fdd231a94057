import pytest
import torch

from fedexperts.errors import MethodError
from fedexperts.methods import Message, Method, Owner, Reply
from fedexperts.methods.base import weighted_mean
from fedexperts.methods.message import Channel


@pytest.mark.parametrize(
    "message",
    [
        Message({"head.weight": torch.randn(4, 3), "head.bias": torch.randn(4)}, {"samples": 17}),
        Message({"gate.counter": torch.tensor(5), "a": torch.ones(2, dtype=torch.bfloat16)}),
        Message({}, {"samples": 1.5, "loss": -2.0}),
        Message({"stacked": torch.randn(5, 3).T[1]}),
    ],
)
def test_a_message_knows_its_bytes_and_comes_back_from_them(message: Message) -> None:
    raw = message.to_bytes()
    assert len(raw) == message.wire_bytes
    back = Message.from_bytes(raw)
    assert back.numbers == message.numbers
    assert back.tensors.keys() == message.tensors.keys()
    assert all(torch.equal(back.tensors[n], t) and back.tensors[n].dtype == t.dtype for n, t in message.tensors.items())


def test_an_empty_message_is_not_sent() -> None:
    assert not Message()
    assert Message().wire_bytes == 0


def test_weighted_mean_follows_the_samples() -> None:
    replies = [
        Reply(k, Message({"w": torch.full((2,), value), "counter": torch.tensor(count)}, {"samples": samples}))
        for k, (value, count, samples) in enumerate([(1.0, 3, 10), (4.0, 9, 30)])
    ]
    mean = weighted_mean(replies)
    assert torch.allclose(mean["w"], torch.full((2,), (1.0 * 10 + 4.0 * 30) / 40))
    assert mean["counter"] == 9


class Three(Method):
    name = "three"
    owners = {"a": Owner.SHARED, "b": Owner.PRIVATE, "c": Owner.PEER}


def test_what_may_go_where() -> None:
    method = Three()
    assert method.forbidden(Channel.UP) == {"b", "c"}
    assert method.forbidden(Channel.DOWN) == {"b", "c"}
    assert method.forbidden(Channel.PEER) == {"a", "b"}
    assert method.kept() == {"b", "c"}


def test_what_the_receiver_still_has_travels_as_a_name_only() -> None:
    pool, head = torch.randn(50, 4), torch.randn(3)
    first, second = Message({"pool.weight": pool}), Message({"head.bias": head}, {"samples": 3}, {"pool.weight": pool})
    memory = dict(Message.from_bytes(first.to_bytes()).tensors)
    again = Message.from_bytes(second.to_bytes(), memory)
    assert torch.equal(again.known["pool.weight"], pool)
    assert list(again.tensors) == ["head.bias"]
    assert second.wire_bytes == len(second.to_bytes()) < first.wire_bytes
    assert second.parameters == 3
    with pytest.raises(MethodError, match=r"pool.weight came before, but the receiver does not have it"):
        Message.from_bytes(second.to_bytes())
