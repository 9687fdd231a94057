"""What makes DualFed itself."""

import pytest
import torch
from support import make_simulation, make_task
from torch.nn import functional as F

from fedexperts.engine import Observer
from fedexperts.methods import Batch, Channel, Message, Model, Round, part_of, select
from fedexperts.methods.dualfed import DualFed, class_contrast
from fedexperts.task import ClientSpec

TASK = make_task("cnn5/8")
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)
LABELS = torch.tensor([0, 0, 1, 1, 1, 2])


def made() -> tuple[Model, Batch]:
    torch.manual_seed(0)
    return Model(DualFed().parts(SPEC)), Batch(torch.randn(6, 1, 8, 8), LABELS)


def test_the_prediction_is_the_sum_of_a_general_and_a_personal_one() -> None:
    model, batch = made()
    general = model.extractor(batch.x)
    expected = model.head(general) + model.personal_head(model.projection(general))
    torch.testing.assert_close(DualFed().predict(model, batch.x, {}), expected)


def test_the_contrast_is_the_supervised_one() -> None:
    features = torch.randn(6, 7).double()
    directions = features / features.norm(dim=1, keepdim=True)
    scores = (directions @ directions.T / 0.2).exp()
    total = torch.zeros(()).double()
    for i in range(6):
        others = [k for k in range(6) if k != i]
        alike = [j for j in others if LABELS[j] == LABELS[i]]
        for j in alike:
            total -= (scores[i, j] / sum(scores[i, k] for k in others)).log() / len(alike)
    torch.testing.assert_close(class_contrast(features, LABELS, 0.2), total / 6)  # the last is alone: it adds nothing


def test_samples_of_a_class_in_one_direction_have_the_least_contrast() -> None:
    apart = torch.eye(3)[[0, 0, 1, 1, 1, 2]]
    together = torch.ones(6, 3)
    assert class_contrast(apart, LABELS, 0.2) < class_contrast(together, LABELS, 0.2)
    assert class_contrast(apart, torch.arange(6), 0.2) == 0


def test_the_personal_side_learns_by_task_and_contrast_and_leaves_the_shared_head_alone() -> None:
    model, batch = made()
    method = DualFed(options={"contrast": 3.0, "temperature": 0.5})
    personal = model.projection(model.extractor(batch.x))
    expected = F.cross_entropy(model.personal_head(personal), batch.y) + 3 * class_contrast(personal, batch.y, 0.5)
    found = method.loss(model, batch, {})
    torch.testing.assert_close(found, expected)
    found.backward()
    assert model.head.weight.grad is None
    assert all(p.grad.abs().max() > 0 for p in model.extractor.parameters())


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_the_shared_head_is_trained_last_on_the_general_features_as_they_are_then(executor: str) -> None:
    personal, general = DualFed().stages(Round(1, 3, seed=0))
    assert personal.parts == ("extractor", "projection", "personal_head")
    assert general.parts == ("head",)
    simulation = make_simulation("dualfed", TASK, participation=1.0, executor=executor)
    [cohorts] = list(simulation.fleet.waves(range(6)))
    for cohort in cohorts:
        job = simulation._job(cohort, Round(1, 3, seed=0))
        job.lessons = job.lessons[1:]
        before = {name: tensor.clone() for name, tensor in cohort.tensors.items()}
        simulation.executor.train([job])
        moved = {part_of(name) for name, tensor in cohort.tensors.items() if not torch.equal(tensor, before[name])}
        assert moved == {"head"}  # the projection's running statistics stay, too


def test_each_client_has_its_own_projection_and_it_never_leaves() -> None:
    seen: set[str] = set()

    class Names(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            seen.update(part_of(name) for name in message.tensors)

    simulation = make_simulation("dualfed", TASK, participation=1.0, observers=(Names(),))
    simulation.step()
    assert seen == {"extractor", "head"}
    first, second = (select(simulation.client_state(k), {"projection"}) for k in range(2))
    assert not any(torch.equal(first[n], second[n]) for n in first if "num_batches" not in n)
