"""What makes PFL-MoE itself."""

import torch
from support import assert_close, finished, make_simulation, make_task

from fedexperts.methods import Model, Round
from fedexperts.methods.pfl_moe import PFLMoE
from fedexperts.task import ClientSpec

TASK = make_task("cnn5/8")
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)


def test_outputs_are_mixed_not_features() -> None:
    method, x = PFLMoE(), torch.randn(8, 1, 8, 8)
    model = Model(method.parts(SPEC)).eval()
    weight = torch.sigmoid(x.flatten(1) @ model.gate[1].weight.T + model.gate[1].bias)
    mixed = weight * model.expert(x).softmax(1) + (1 - weight) * model.global_model(x).softmax(1)
    torch.testing.assert_close(method.predict(model, x, {}).softmax(1), mixed)
    assert weight.std() > 0


def test_the_gate_sees_data_that_the_expert_does_not() -> None:
    simulation = make_simulation("pfl-moe", TASK, participation=1.0)
    [cohorts] = list(simulation.fleet.waves(range(6)))
    for cohort in cohorts:
        expert, gate, everything = simulation._job(cohort, Round(1, 3, seed=0)).lessons
        for position, client in enumerate(cohort.clients):
            seen = [
                set(lesson.order[position, : lesson.steps[position]].flatten().tolist()) for lesson in (expert, gate)
            ]
            assert not seen[0] & seen[1]
            whole = everything.order[position, : everything.steps[position]].flatten().tolist()
            assert seen[0] | seen[1] == set(whole) == set(TASK.clients[client.id].train.tolist())


def test_the_global_model_is_fedavgs() -> None:
    # A stage's batches depend on its number: FedAvg's single stage is here the third.
    class Late(PFLMoE):
        def stages(self, now: Round):  # type: ignore[no-untyped-def]
            return super().stages(now)[2:]

    found = finished(Late, TASK).server
    expected = finished("fedavg", TASK).server
    assert_close({name.removeprefix("global_model."): t for name, t in found.items()}, expected)


def test_the_expert_is_fine_tuned_from_the_global_model_and_stays() -> None:
    simulation = make_simulation("pfl-moe", TASK, participation=0.34)
    before = simulation.server
    [cohorts] = list(simulation.fleet.waves(simulation.sample(1)))
    job = simulation._job(cohorts[0], Round(1, 3, seed=0))
    for name, tensor in before.items():
        assert torch.equal(job.cohort.of(0)[name.replace("global_model.", "expert.")], tensor)
    simulation.step()
    client = simulation.sample(1)[0]
    kept = simulation.fleet.kept(client)
    assert torch.equal(simulation.client_state(client)["expert.head.weight"], kept["expert.head.weight"])
    assert not torch.equal(kept["expert.head.weight"], simulation.server["global_model.head.weight"])


def test_clients_with_different_models_all_run_the_common_one() -> None:
    assert "needs one model for all" in make_simulation("pfl-moe", make_task()).note
