"""What makes GPFL itself."""

import torch
from support import make_simulation, make_task
from torch.nn import functional as F

from fedexperts.engine import Observer
from fedexperts.methods import Batch, Channel, Message, Model, State
from fedexperts.methods.gpfl import GPFL
from fedexperts.task import ClientSpec

TASK = make_task("cnn5")
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=20, label_counts=(10, 6, 4, 0))
METHOD = GPFL(options={"magnitude": 0.3, "decay": 0.02})


def made(spec: ClientSpec = SPEC) -> tuple[Model, Batch, State]:
    """A client in the middle of a round: its embeddings are no more those that it got."""
    torch.manual_seed(0)
    model = Model(METHOD.parts(spec)).double()
    batch = Batch(torch.randn(8, 1, 8, 8).double(), torch.tensor([0, 0, 1, 1, 1, 2, 2, 0]))
    return model, batch, {"embeddings.weight": torch.randn(4, 500).double()}


def through(model: Model, features: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
    """Eq. 3 and 4."""
    scale, shift = (
        F.layer_norm(F.relu(part[0].weight @ condition + part[0].bias), (500,), part[2].weight, part[2].bias)
        for part in (model.valve.scale, model.valve.shift)
    )
    return F.relu((scale + 1) * features + shift)


def routes(model: Model, batch: Batch, received: State) -> tuple[torch.Tensor, torch.Tensor]:
    """f^G and f^P."""
    features, frozen = model.extractor(batch.x), received["embeddings.weight"]
    personal = (10 * frozen[0] + 6 * frozen[1] + 4 * frozen[2]) / 20
    return through(model, features, frozen.sum(0) / 4), through(model, features, personal)


def test_the_prediction_goes_the_personal_route_whose_condition_is_that_of_the_rounds_start() -> None:
    model, batch, received = made()
    _, personal = routes(model, batch, received)
    torch.testing.assert_close(METHOD.represent(model, batch.x, received), personal)
    torch.testing.assert_close(METHOD.predict(model, batch.x, received), model.head(personal))


def test_both_routes_are_one_where_all_classes_are_equally_frequent() -> None:
    model, batch, received = made(ClientSpec(0, "cnn5", (1, 8, 8), 4, 20, (5, 5, 5, 5)))
    common, other = routes(model, batch, received)
    torch.testing.assert_close(METHOD.represent(model, batch.x, received), common)
    assert (common - other).abs().max() > 0.1


def losses(model: Model, batch: Batch, received: State) -> dict[str, torch.Tensor]:
    """Eq. 8 to 11, term by term."""
    common, personal = routes(model, batch, received)
    cosines = F.cosine_similarity(common[:, None], model.embeddings.weight[None], dim=2).exp()
    distances = [(common[i] - received["embeddings.weight"][y]).square().sum().sqrt() for i, y in enumerate(batch.y)]
    weights = [*model.valve.parameters(), *model.embeddings.parameters()]
    return {
        "task": F.cross_entropy(model.head(personal), batch.y),
        "angle": -(cosines[range(8), batch.y] / cosines.sum(1)).log().mean(),
        "magnitude": 0.3 * torch.stack(distances).mean(),
        "decay": 0.01 * sum(weight.square().sum() for weight in weights),
    }


def test_the_loss_is_the_task_and_the_guidance_by_angle_and_by_magnitude() -> None:
    model, batch, received = made()
    expected = losses(model, batch, received)
    assert min(expected.values()) > 0.1
    torch.testing.assert_close(METHOD.loss(model, batch, received), sum(expected.values()))


def test_each_part_learns_from_its_own_terms() -> None:
    model, batch, received = made()
    teachers = {
        "head": ["task"],
        "embeddings": ["angle", "decay"],
        "extractor": ["task", "angle", "magnitude"],
        "valve": ["task", "angle", "magnitude", "decay"],
    }
    for part, terms in teachers.items():
        parameters = list(getattr(model, part).parameters())
        found = torch.autograd.grad(METHOD.loss(model, batch, received), parameters)
        expected = torch.autograd.grad(sum(losses(model, batch, received)[term] for term in terms), parameters)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
            assert a.abs().max() > 0


def test_head_and_class_shares_never_leave() -> None:
    seen: set[str] = set()

    class Names(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            seen.update(name.partition(".")[0] for name in message.tensors)

    simulation = make_simulation("gpfl", TASK, participation=1.0, observers=(Names(),))
    before = [simulation.fleet.kept(client) for client in range(6)]
    simulation.run()
    assert seen == {"extractor", "valve", "embeddings"}
    for client, old in enumerate(before):
        new = simulation.fleet.kept(client)
        assert new.keys() == {"head.weight", "head.bias", "prior.logs"}
        assert torch.equal(old["prior.logs"], new["prior.logs"])
        assert not torch.equal(old["head.weight"], new["head.weight"])
