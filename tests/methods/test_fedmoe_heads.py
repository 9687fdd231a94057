"""What makes FedMoE-Heads itself."""

import torch
from support import assert_same_bits, finished, make_task
from torch.nn import functional as F

from fedexperts.methods import Batch, Model
from fedexperts.methods.fedmoe_heads import FedMoEHeads
from fedexperts.task import ClientSpec

SPEC = ClientSpec(id=0, model="cnn4", shape=(1, 8, 8), classes=4, samples=100)
X = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_both_experts_count_alike_at_first() -> None:
    method = FedMoEHeads()
    model = Model(method.parts(SPEC))
    assert torch.equal(method.weigh(model, X, {}), torch.full((8, 2), 0.5))
    each = model.global_head(model.global_expert(X)) + model.head(model.local_expert(X))
    assert torch.allclose(method.predict(model, X, {}), each / 2)


def test_each_expert_answers_for_itself_and_for_the_mixture() -> None:
    method = FedMoEHeads(options={"gate_fixed": 0.25})
    model = Model(method.parts(SPEC))
    y = torch.arange(8) % 4
    answers = model.global_head(model.global_expert(X)), model.head(model.local_expert(X))
    both = 0.25 * answers[0] + 0.75 * answers[1]
    expected = sum(F.cross_entropy(logits, y) for logits in (both, *answers))
    assert torch.allclose(method.loss(model, Batch(X, y), {}), torch.as_tensor(expected))


def test_the_gate_does_not_move_what_it_reads() -> None:
    method = FedMoEHeads()
    model = Model(method.parts(SPEC))
    torch.nn.init.normal_(model.gate[5].weight)
    method.weigh(model, X, {})[:, 0].sum().backward()
    assert model.gate[2].weight.grad.abs().sum() > 0
    assert all(p.grad is None for part in (model.global_expert, model.local_expert) for p in part.parameters())


def test_the_global_experts_head_stays_at_home() -> None:
    simulation = finished("fedmoe-heads", make_task())
    assert {name.partition(".")[0] for name in simulation.server} == {"global_expert"}


def test_the_local_expert_starts_as_it_would_alone() -> None:
    task = make_task()
    ours, alone = (finished(name, task, rounds=1, participation=0.17).fleet for name in ("fedmoe-heads", "standalone"))
    untouched = next(k for k in range(6) if ours.store.get(k) is None)
    own = {n.replace("local_expert.", "extractor."): t for n, t in ours.kept(untouched).items()}
    expected = alone.kept(untouched)
    assert_same_bits({name: own[name] for name in expected}, dict(expected))
