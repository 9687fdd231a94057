"""What makes FedRoD itself."""

import numpy as np
import torch
from support import make_simulation, make_task
from torch.nn import functional as F

from fedexperts.engine import Observer
from fedexperts.methods import Batch, Channel, Message, Model
from fedexperts.methods.fedrod import FedRoD
from fedexperts.task import ClientSpec

TASK = make_task("cnn5/8")
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=20, label_counts=(10, 6, 4, 0))
METHOD = FedRoD()


def made() -> tuple[Model, Batch]:
    torch.manual_seed(0)
    return Model(METHOD.parts(SPEC)), Batch(torch.randn(8, 1, 8, 8), torch.tensor([0, 0, 1, 1, 1, 2, 2, 0]))


def both_losses(model: Model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The generic head's balanced loss, written as in the paper, and the personal head's."""
    features = model.extractor(batch.x)
    generic = model.head(features)
    weighted = torch.tensor(SPEC.label_counts) * generic.exp()
    balanced = -(weighted / weighted.sum(1, keepdim=True))[range(8), batch.y].log().mean()
    return balanced, F.cross_entropy(generic.detach() + model.personal_head(features.detach()), batch.y)


def test_the_prior_is_in_the_generic_heads_loss_exactly() -> None:
    model, batch = made()
    torch.testing.assert_close(METHOD.loss(model, batch, {}), sum(both_losses(model, batch)))


def test_the_prior_is_not_in_the_prediction() -> None:
    model, batch = made()
    features = model.extractor(batch.x)
    torch.testing.assert_close(METHOD.predict(model, batch.x, {}), model.head(features) + model.personal_head(features))


def test_the_personal_heads_loss_moves_nothing_else_nor_do_others_move_it() -> None:
    model, batch = made()
    for part, alone in (("extractor", 0), ("head", 0), ("personal_head", 1)):
        parameters = list(getattr(model, part).parameters())
        found = torch.autograd.grad(METHOD.loss(model, batch, {}), parameters)
        expected = torch.autograd.grad(both_losses(model, batch)[alone], parameters)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
            assert a.abs().max() > 0


def test_a_class_that_the_client_lacks_stays_as_it_is_and_may_still_come() -> None:
    model, batch = made()
    [gradient] = torch.autograd.grad(METHOD.loss(model, batch, {}), [model.head.weight])
    assert gradient[3].abs().max() < 1e-9 < gradient[2].abs().max()
    assert METHOD.loss(model, batch._replace(y=torch.full((8,), 3)), {}).isfinite()


def test_every_client_has_its_own_prior_and_all_are_stacked_together() -> None:
    task = make_task("cnn5/8", sizes=(64, 48, 32))
    simulation = make_simulation("fedrod", task, participation=1.0)
    [[cohort]] = list(simulation.fleet.waves(range(3)))
    for position, client in enumerate(cohort.clients):
        counts = np.bincount(task.dataset.labels[task.clients[client.id].train], minlength=4)
        assert client.label_counts == tuple(counts)
        shares = torch.from_numpy(counts / counts.sum())
        torch.testing.assert_close(cohort.of(position)["prior.logs"].exp(), shares, rtol=1e-6, atol=0)
    assert len(cohort.tensors["prior.logs"].unique(dim=0)) == 3


def test_the_personal_head_and_the_prior_never_leave() -> None:
    seen: set[str] = set()

    class Names(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            seen.update(name.partition(".")[0] for name in message.tensors)

    simulation = make_simulation("fedrod", TASK, participation=1.0, observers=(Names(),))
    before = [simulation.fleet.kept(client) for client in range(6)]
    simulation.run()
    assert seen == {"extractor", "head"}
    after = [simulation.fleet.kept(client) for client in range(6)]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old["prior.logs"], new["prior.logs"])
        assert not torch.equal(old["personal_head.weight"], new["personal_head.weight"])
    assert len({tensors["personal_head.bias"][0].item() for tensors in after}) == 6
