"""What makes FML itself, and what it has in common with the other methods of mutual learning."""

import pytest
import torch
from support import assert_same_bits, finished, make_simulation, make_task, states
from torch.nn import functional as F

from fedexperts.errors import SettingsError
from fedexperts.methods import Batch, Model, select
from fedexperts.methods.fml import FML
from fedexperts.methods.mutual import divergence
from fedexperts.task import ClientSpec

TASK = make_task()
SPEC = ClientSpec(id=0, model="cnn4", shape=(1, 8, 8), classes=4, samples=100)
ALONE = {"alpha_local": 1.0, "beta_meme": 1.0}


def renamed(state: dict[str, torch.Tensor], old: str, new: str) -> dict[str, torch.Tensor]:
    return {name.replace(old, new, 1): tensor for name, tensor in state.items() if name.startswith(old)}


def batch() -> Batch:
    torch.manual_seed(1)
    return Batch(torch.randn(8, 1, 8, 8), torch.randint(0, 4, (8,)))


def test_without_teaching_the_local_model_is_standalones() -> None:
    mutual, alone = (states(finished(name, TASK, options=o)) for name, o in (("fml", ALONE), ("standalone", {})))
    for client in range(6):
        assert_same_bits(renamed(mutual, f"{client}/local.", ""), renamed(alone, f"{client}/", ""))


def test_without_teaching_the_meme_is_fedavgs_model() -> None:
    mutual, together = make_simulation("fml", TASK, options=ALONE), make_simulation("fedavg", make_task("cnn5/8"))
    mutual.server = {f"meme.{name}": tensor.clone() for name, tensor in together.server.items()}
    for simulation in (mutual, together):
        simulation.run()
    assert_same_bits(renamed(mutual.server, "meme.", ""), together.server)


def test_the_local_model_predicts_and_the_meme_travels() -> None:
    method = FML()
    model = Model(method.parts(SPEC))
    x = batch().x
    assert torch.equal(method.predict(model, x, {}), model.local(x))
    assert torch.equal(model.local.head(method.represent(model, x, {})), model.local(x))
    assert set(method.start(model)) == {f"meme.{name}" for name in model.meme.state_dict()}


def gradients(method: FML, model: Model) -> dict[str, torch.Tensor]:
    names, leaves = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(method.loss(model, batch(), {}), leaves), strict=True))


@pytest.mark.parametrize(
    ("mine", "other", "option"), [("local", "meme", "beta_meme"), ("meme", "local", "alpha_local")]
)
def test_a_loss_moves_its_own_model_only(mine: str, other: str, option: str) -> None:
    """How much the other model listens changes the other's gradients and not mine."""
    model = Model(FML().parts(SPEC))
    half, deaf = gradients(FML(), model), gradients(FML(options={option: 1.0}), model)
    assert_same_bits(select(deaf, {mine}), select(half, {mine}))
    assert not any(torch.equal(deaf[n], t) for n, t in select(half, {other}).items())


def test_divergence_is_the_kl_of_the_learner_from_the_teacher() -> None:
    torch.manual_seed(0)
    teacher, learner = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    expected = F.kl_div(learner.log_softmax(1), teacher.softmax(1), reduction="batchmean")
    found = divergence(teacher, learner)
    torch.testing.assert_close(found, expected)
    found.backward()
    assert teacher.grad is None
    torch.testing.assert_close(learner.grad, (learner.softmax(1) - teacher.softmax(1)).detach() / 5)


def test_the_shared_model_is_a_choice() -> None:
    simulation = finished("fml", TASK, options={"shared_model": "cnn-da"}, rounds=1)
    assert len(simulation.server["meme.extractor.fc1.bias"]) == 120
    with pytest.raises(SettingsError, match="unknown model 'cnn-dd'; did you mean 'cnn-da'"):
        FML(options={"shared_model": "cnn-dd"})
