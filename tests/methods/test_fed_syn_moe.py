"""What makes Fed-Syn-MoE itself."""

import torch
from support import assert_close, finished, make_simulation, make_task

from fedexperts.methods import Batch, Model, Round, State
from fedexperts.methods.fed_syn_moe import FedSynMoE
from fedexperts.task import ClientSpec

TASK = make_task("cnn5/8")
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)


def test_one_loss_trains_both_models_and_the_gate_together() -> None:
    torch.manual_seed(0)
    method, batch = FedSynMoE(), Batch(torch.randn(8, 1, 8, 8), torch.randint(0, 4, (8,)))
    model = Model(method.parts(SPEC))
    [stage] = method.stages(Round(1, 3, seed=0))
    assert set(stage.parts) == {"global_model", "expert", "gate"}
    assert stage.share == (0, 1)
    weights = model.gate(batch.x).softmax(1)
    outputs = [model.global_model(batch.x).softmax(1), model.expert(batch.x).softmax(1)]
    mixed = weights[:, :1] * outputs[0] + weights[:, 1:] * outputs[1]
    loss = stage.loss(model, batch, {})
    torch.testing.assert_close(loss, -mixed[range(8), batch.y].log().mean())
    assert weights.std(0).min() > 0
    for part in stage.parts:
        for gradient in torch.autograd.grad(loss, list(getattr(model, part).parameters()), retain_graph=True):
            assert gradient.abs().max() > 0


def test_where_the_gate_trusts_the_global_model_alone_it_is_fedavg() -> None:
    class Global(FedSynMoE):
        def weigh(self, model: Model, x: torch.Tensor, received: State) -> torch.Tensor:
            return x.new_tensor([1.0, 0.0]).expand(len(x), 2)

    found = finished(Global, TASK).server
    assert_close({n.removeprefix("global_model."): t for n, t in found.items()}, dict(finished("fedavg", TASK).server))


def test_the_local_model_goes_its_own_way_from_round_to_round() -> None:
    simulation = make_simulation("fed-syn-moe", TASK, participation=1.0)
    simulation.step()
    kept = [simulation.fleet.kept(client)["expert.head.weight"].clone() for client in range(6)]
    [cohorts] = list(simulation.fleet.waves(range(6)))
    for cohort in cohorts:
        simulation._job(cohort, Round(2, 3, seed=0))  # what a round begins with
        for position, client in enumerate(cohort.clients):
            own = cohort.of(position)
            assert torch.equal(own["expert.head.weight"], kept[client.id])
            assert torch.equal(own["global_model.head.weight"], simulation.server["global_model.head.weight"])
    assert len({weight[0, 0].item() for weight in kept}) == 6
