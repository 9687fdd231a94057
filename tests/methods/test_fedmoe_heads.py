"""What makes FedMoE-Heads itself."""

from collections.abc import Sequence

import torch
from support import assert_same_bits, finished, make_simulation, make_task

from fedexperts.methods import Model, Round, Stage
from fedexperts.methods.fedmoe_heads import FedMoEHeads
from fedexperts.methods.fedper import FedPer
from fedexperts.methods.standalone import Standalone
from fedexperts.task import ClientSpec

SPEC = ClientSpec(id=0, model="cnn4", shape=(1, 8, 8), classes=4, samples=100)
X = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
TASK = make_task("cnn5/8")
WITHOUT_GATE = {"gate_fixed": 0.5}  # the batches of a stage depend on its number: the experts' becomes the first


def on_the_experts_share(kind: type) -> type:
    class Cut(kind):  # type: ignore[misc]
        def stages(self, now: Round) -> Sequence[Stage]:
            return [Stage(tuple(self.owners), self.loss, self.train.epochs, share=(0.1, 1))]

    return Cut


def test_both_experts_count_alike_at_first() -> None:
    method = FedMoEHeads()
    model = Model(method.parts(SPEC))
    assert torch.equal(method.weigh(model, X, {}), torch.full((8, 2), 0.5))
    each = model.global_head(model.global_expert(X)) + model.head(model.local_expert(X))
    assert torch.allclose(method.predict(model, X, {}), each / 2)


def test_the_local_expert_is_standalones_bit_for_bit() -> None:
    ours = finished("fedmoe-heads", TASK, options=WITHOUT_GATE)
    alone = finished(on_the_experts_share(Standalone), TASK)
    for client in range(6):
        state = {n.replace("local_expert.", "extractor."): t for n, t in ours.client_state(client).items()}
        expected = alone.client_state(client)
        assert_same_bits({name: state[name] for name in expected}, expected)


def test_the_global_expert_is_fedpers_bit_for_bit() -> None:
    ours = make_simulation("fedmoe-heads", TASK, options=WITHOUT_GATE, participation=1.0)
    per = make_simulation(on_the_experts_share(FedPer), TASK, participation=1.0)
    names = {name: name.replace("extractor.", "global_expert.") for name in per.server}
    per.server = {name: ours.server[names[name]].clone() for name in names}
    for client in range(6):  # the same heads to begin with
        fresh = ours.fleet.kept(client)
        own = {f"head.{kind}": fresh[f"global_head.{kind}"].clone() for kind in ("weight", "bias")}
        per.store.put(client, own)
    for simulation in (ours, per):
        simulation.step()
        simulation.step()
    assert_same_bits({name: ours.server[names[name]] for name in names}, per.server)


def test_the_gate_learns_from_data_that_the_experts_do_not_see() -> None:
    gate, experts = FedMoEHeads(options={"gate_share": 0.25, "gate_lr": 0.5}).stages(Round(1, 3, seed=0))
    assert (gate.parts, gate.share, gate.rates) == (("gate",), (0, 0.25), {"gate": 0.5})
    assert (experts.share, experts.rates) == ((0.25, 1), {})
    assert set(experts.parts) == {"global_expert", "local_expert", "head", "global_head"}


def test_the_gate_does_not_move_what_it_reads() -> None:
    method = FedMoEHeads()
    model = Model(method.parts(SPEC))
    torch.nn.init.normal_(model.gate[5].weight)
    method.weigh(model, X, {})[:, 0].sum().backward()
    assert model.gate[2].weight.grad.abs().sum() > 0
    assert all(p.grad is None for part in (model.global_expert, model.local_expert) for p in part.parameters())


def test_only_the_global_expert_leaves() -> None:
    simulation = finished("fedmoe-heads", make_task())
    assert {name.partition(".")[0] for name in simulation.server} == {"global_expert"}
