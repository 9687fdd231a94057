"""What makes FD itself."""

import torch
from support import assert_close, by_class, finished, make_task, states
from torch.nn import functional as F

from fedexperts.methods import Batch, Model, Reply, Round, Trained
from fedexperts.methods.fd import FD
from fedexperts.task import ClientSpec

TASK = make_task()
NOW = Round(5, 10, seed=0)
SPEC = ClientSpec(id=0, model="cnn4", shape=(1, 8, 8), classes=4, samples=100)
X, Y = torch.randn(6, 1, 8, 8), torch.tensor([0, 0, 1, 1, 2, 3])


def trained(counts: list[float], means: torch.Tensor) -> Trained:
    return Trained(SPEC, {}, {}, by_class(torch.tensor(counts).float(), means))


def distillation(method: FD, model: Model, received: dict[str, torch.Tensor]) -> torch.Tensor:
    without = F.cross_entropy(method.predict(model, X, received), Y)
    return method.loss(model, Batch(X, Y), received) - without


def test_a_client_learns_from_the_others_and_not_from_itself() -> None:
    method = FD(options={"distillation": 2.0})
    model = Model(method.parts(SPEC))
    mine, theirs = torch.randn(4, 4), torch.randn(4, 4)
    own = trained([3, 2, 0, 0], mine * torch.tensor([[1.0], [1], [0], [0]]))
    others = trained([5, 0, 7, 0], theirs * torch.tensor([[1.0], [0], [1], [0]]))
    server = method.combine(
        method.start(model), [Reply(0, method.reply(own, NOW)), Reply(1, method.reply(others, NOW))], NOW
    )
    assert server["logits.clients"].tolist() == [2, 1, 1, 0]
    model.load_state_dict(dict(model.state_dict()) | method.finish(own, NOW))
    # Class 0: both sent it, the client hears the other. Class 1: only its own. Class 2: the other's. Class 3: nobody's.
    logits = method.predict(model, X, {})
    heard = [F.cross_entropy(logits[i], theirs[Y[i]].softmax(0)) for i in (0, 1, 4)]
    expected = 2 * torch.stack(heard).sum() / 6
    assert torch.allclose(distillation(method, model, server), expected, atol=1e-6)


def test_what_a_client_sent_long_ago_is_not_taken_out() -> None:
    method = FD()
    model = Model(method.parts(SPEC))
    old = trained([1, 1, 1, 1], torch.randn(4, 4))
    model.load_state_dict(dict(model.state_dict()) | method.finish(old, Round(3, 10, seed=0)))
    theirs = torch.randn(4, 4)
    server = method.combine(method.start(model), [Reply(1, method.reply(trained([1, 1, 1, 1], theirs), NOW))], NOW)
    logits = method.predict(model, X, {})
    assert torch.allclose(distillation(method, model, server), F.cross_entropy(logits, theirs[Y].softmax(1)), atol=1e-6)


def test_a_class_that_nobody_sends_keeps_what_was_known() -> None:
    method, first, second = FD(), torch.randn(4, 4), torch.randn(4, 4)
    server = method.start(Model(method.parts(SPEC)))
    server = method.combine(server, [Reply(0, method.reply(trained([1, 1, 0, 0], first), NOW))], NOW)
    later = Round(6, 10, seed=0)
    server = method.combine(server, [Reply(1, method.reply(trained([0, 1, 1, 0], second), later))], later)
    assert torch.equal(server["logits.sum"][0], first[0])
    assert torch.equal(server["logits.sum"][1], second[1])
    assert server["logits.round"].tolist() == [5, 6, 6, -1]


def test_without_distillation_it_is_standalone() -> None:
    free = states(finished("fd", TASK, options={"distillation": 0.0}))
    alone = states(finished("standalone", TASK))
    assert_close({name: free[name] for name in alone}, alone)
