"""What makes FedDecomp itself."""

import pytest
import torch
from support import assert_close, finished, make_simulation, make_task, make_text_task
from torch import Tensor
from torch.nn import functional as F

from fedexperts.config import TrainSettings
from fedexperts.methods import Model, Round, Stage, select
from fedexperts.methods.feddecomp import FedDecomp, LowRank
from fedexperts.task import ClientSpec

TASK = make_task("cnn5/8")
SPEC = ClientSpec(id=0, model="cnn5", shape=(1, 8, 8), classes=4, samples=100)


def as_matrix(kernel: Tensor) -> Tensor:
    """(filters·height) × (channels·width): a row for each row of each filter, its channels side by side."""
    return torch.stack([torch.cat(list(rows)) for each in kernel for rows in each.transpose(0, 1)])


@pytest.mark.parametrize(("shape", "rank"), [((32, 16, 5, 5), 40), ((6, 1, 5, 3), 1), ((10, 300), 5), ((300, 2), 1)])
def test_what_is_a_clients_own_has_a_low_rank(shape: tuple[int, ...], rank: int) -> None:
    torch.manual_seed(0)
    own = LowRank(shape, 0.5).double()
    assert own().shape == torch.Size(shape)
    assert own().abs().max() == 0
    torch.nn.init.normal_(own.b)
    weight = own().detach()
    matrix = as_matrix(weight) if len(shape) == 4 else weight
    assert torch.linalg.matrix_rank(matrix) == rank
    torch.testing.assert_close(matrix, (own.b @ own.a / rank).detach())


def test_the_weights_in_use_are_the_sum_and_the_parts_are_called_as_ever() -> None:
    torch.manual_seed(0)
    method = FedDecomp()
    model = Model(method.parts(SPEC)).double()
    x = torch.randn(5, 1, 8, 8).double()
    plain = model.head(model.extractor(x))
    torch.testing.assert_close(method.predict(model, x, {}), plain)  # nothing is the client's own yet
    for own in model.low_rank.values():
        torch.nn.init.normal_(own.b)
    assert not torch.allclose(method.predict(model, x, {}), plain)
    assert set(model.low_rank) == {
        f"{layer}/weight" for layer in ("extractor/conv1", "extractor/conv2", "extractor/fc1", "extractor/fc2", "head")
    }
    summed = Model(super(FedDecomp, method).parts(SPEC)).double()
    for name, weight in summed.named_parameters():
        low = model.low_rank[name.replace(".", "/")]() if name.endswith("weight") else 0
        weight.data = (model.get_parameter(name) + low).detach()
    torch.testing.assert_close(method.predict(model, x, {}), summed.head(summed.extractor(x)))
    torch.testing.assert_close(method.represent(model, x, {}), summed.extractor(x))


def test_the_low_rank_part_is_trained_first_then_the_shared_one() -> None:
    first, second = FedDecomp(TrainSettings.check({"epochs": 3})).stages(Round(1, 5, seed=0))
    assert (first.parts, first.epochs) == (("low_rank",), 2)
    assert (second.parts, second.epochs) == (("extractor", "head"), 3)


def test_ranks_are_ratios_of_the_full_ones_in_convolutions_and_elsewhere() -> None:
    parts = FedDecomp(options={"conv_rank": 0.25, "linear_rank": 0.1}).parts(SPEC)
    ranks = {name.removesuffix("/weight"): own.rank for name, own in parts["low_rank"].items()}  # type: ignore[operator]
    sides = {"extractor/conv1": 5, "extractor/conv2": 80}  # the smaller one of 80 × 5 and 160 × 80
    for name, side in sides.items():
        assert ranks[name] == max(1, int(0.25 * side))
    assert (ranks["extractor/fc2"], ranks["head"]) == (50, 1)


def test_without_a_part_of_its_own_it_is_fedavg() -> None:
    class Shared(FedDecomp):
        name = "shared"

        def stages(self, now: Round) -> list[Stage]:
            return [super().stages(now)[1]]

    assert_close(finished(Shared, TASK).server, finished("fedavg", TASK).server)


def test_words_have_embeddings_of_low_rank_too() -> None:
    simulation = make_simulation("feddecomp", make_text_task("fasttext"), participation=1.0)
    for _ in range(2):
        simulation.step()
    own = select(simulation.client_state(0), {"low_rank"})
    word = own["low_rank.extractor/words/weight.b"] @ own["low_rank.extractor/words/weight.a"]
    assert word.shape == simulation.server["extractor.words.weight"].shape
    assert torch.linalg.matrix_rank(word) <= 12  # of 32
    assert F.normalize(word, dim=1).abs().max() > 0
