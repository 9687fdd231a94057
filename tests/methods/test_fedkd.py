"""What makes FedKD itself."""

import pytest
import torch
from support import finished, make_task
from torch.nn import functional as F

from fedexperts.measure import History
from fedexperts.methods import Batch, Message, Method, Model, Round, State, Trained, select
from fedexperts.methods.fedkd import FIRST_RANKS, FedKD, compress, factors, rebuild
from fedexperts.task import ClientSpec

TASK = make_task("cnn5,cnn4")
SPEC = ClientSpec(id=0, model="cnn4", shape=(1, 8, 8), classes=4, samples=100)


def decaying(*shape: int, rate: float = 0.8) -> torch.Tensor:
    """A matrix whose singular values fall as those of an update do."""
    rows, columns = shape[0], torch.Size(shape[1:]).numel()
    generator = torch.Generator().manual_seed(rows)
    u, _, v = torch.linalg.svd(torch.randn(rows, columns, generator=generator), full_matrices=False)
    return (u * rate ** torch.arange(min(rows, columns)) @ v).reshape(shape)


UPDATE = {
    "mentee.wide.weight": decaying(40, 90),
    "mentee.tall.weight": decaying(90, 40),
    "mentee.conv.weight": decaying(32, 16, 5, 5),
    "mentee.bias": torch.randn(40),
}


def compressed(update: State, energy: float) -> State:
    """What one client sends of its update."""
    [sent] = compress({name: tensor[None] for name, tensor in update.items()}, energy)
    return sent


def test_the_upload_is_smaller_than_the_model_and_the_ledger_shows_it() -> None:
    history = History()
    simulation = finished("fedkd", TASK, observers=(history,), participation=1.0)
    model = sum(tensor.numel() for tensor in simulation.server.values())
    messages = 3 * 6
    assert sum(row["down_parameters"] for row in history.rows) == messages * model
    assert sum(row["up_parameters"] for row in history.rows) < messages * model / 5
    assert sum(row["up_bytes"] for row in history.rows) < sum(row["down_bytes"] for row in history.rows) / 5


@pytest.mark.parametrize("energy", [0.5, 0.95, 0.98, 0.999])
def test_a_rebuilt_update_keeps_the_energy_with_the_smallest_rank(energy: float) -> None:
    sent = compressed(UPDATE, energy)
    back = rebuild(sent, UPDATE)
    assert torch.equal(back["mentee.bias"], UPDATE["mentee.bias"])
    for name, tensor in UPDATE.items():
        if tensor.dim() > 1:
            total = tensor.square().sum()
            assert back[name].shape == tensor.shape
            assert back[name].square().sum() >= energy * total * (1 - 1e-5)
            # What is missing is what the best approximation of this rank must miss, and one rank less is too little.
            rank = sent[f"{name}/left"].shape[1]
            squares = torch.linalg.svdvals(tensor.flatten(1)).square()
            torch.testing.assert_close((tensor - back[name]).square().sum(), squares[rank:].sum(), rtol=1e-3, atol=1e-6)
            assert squares[: rank - 1].sum() < energy * total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_matrices_together_are_as_each_alone(dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(90, 120, generator=rng)
    low = torch.randn(90, 3, generator=rng) @ torch.randn(3, 120, generator=rng)
    slow = decaying(90, 120, rate=0.95)  # needs more vectors than there are at first
    nothing = torch.zeros(90, 120)
    stacked = torch.stack([decaying(90, 120), low, slow, noise, nothing, nothing + torch.nan, 1e-12 * low]).to(dtype)
    together = factors(stacked, 0.97)
    ranks = [None if pair is None else pair.left.shape[1] for pair in together]
    assert ranks[1] == ranks[6] == 3
    assert ranks[2] is not None
    assert ranks[2] > FIRST_RANKS
    assert ranks[3] is ranks[5] is None
    assert ranks[4] == 1
    for matrix, pair in zip(stacked, together, strict=True):
        [alone] = factors(matrix[None], 0.97)
        if pair is None or alone is None:
            assert pair is alone
            continue
        assert pair.left.shape == alone.left.shape
        torch.testing.assert_close(pair.left @ pair.right, alone.left @ alone.right, rtol=1e-4, atol=1e-6)
        missed = (matrix - pair.left @ pair.right).square().sum()
        best = torch.linalg.svdvals(matrix)[pair.left.shape[1] :].square().sum()
        torch.testing.assert_close(missed, best, rtol=1e-3, atol=1e-6)


def test_the_names_still_tell_the_part() -> None:
    assert set(select(compressed(UPDATE, 0.95), {"mentee"})) == {
        "mentee.bias",
        *(f"mentee.{layer}.weight/{side}" for layer in ("wide", "tall", "conv") for side in ("left", "right")),
    }


def test_a_matrix_goes_whole_where_its_factors_would_be_larger() -> None:
    torch.manual_seed(0)
    flat: State = {"mentee.a": torch.randn(30, 30), "mentee.b": torch.randn(3, 200), "mentee.c": torch.eye(20)}
    assert compressed(flat, 0.98).keys() == flat.keys()
    for energy in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
        assert Message(compressed(flat | UPDATE, energy)).parameters <= Message(flat | UPDATE).parameters


def test_what_is_no_number_or_nothing_survives() -> None:
    broken = {"mentee.a": torch.full((4, 50), torch.nan), "mentee.b": torch.zeros(4, 50)}
    back = rebuild(compressed(broken, 0.95), broken)
    assert back["mentee.a"].isnan().all()
    assert compressed({"mentee.a": broken["mentee.a"]}, 0.95).keys() == {"mentee.a"}
    assert torch.equal(back["mentee.b"], broken["mentee.b"])


class Whole(FedKD):
    """Sends its model as it is."""

    name = "whole"
    replies, combine = Method.replies, Method.combine


def test_full_energy_loses_nothing() -> None:
    options = {"energy_start": 1.0, "energy_end": 1.0}
    lossless, whole = finished("fedkd", TASK, options=options), finished(Whole, TASK)
    for name, tensor in whole.server.items():
        torch.testing.assert_close(lossless.server[name], tensor, rtol=0, atol=1e-8)
    lossy = finished("fedkd", TASK).server
    assert not torch.allclose(lossy["mentee.extractor.fc1.weight"], whole.server["mentee.extractor.fc1.weight"])


def test_the_energy_rises_with_the_rounds() -> None:
    method = FedKD()
    found = [method.energy(Round(number, 100, seed=0)) for number in (1, 50, 100)]
    assert found == pytest.approx([0.9503, 0.965, 0.98])
    own, received = {"mentee.w": decaying(40, 90)}, {"mentee.w": torch.zeros(40, 90)}
    after = Trained(SPEC, own, received)
    ranks = [
        method.replies([after], Round(number, 100, seed=0))[0].tensors["mentee.w/left"].shape[1] for number in (1, 100)
    ]
    assert ranks[0] < ranks[1]


def test_each_model_learns_from_labels_and_as_far_as_both_are_right_from_the_other() -> None:
    torch.manual_seed(0)
    model = Model(FedKD().parts(SPEC))
    x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 4, (8,))
    features = {part: getattr(model, part).extractor(x) for part in ("mentor", "mentee")}
    logits = {part: getattr(model, part).head(h) for part, h in features.items()}
    task = {part: F.cross_entropy(o, y) for part, o in logits.items()}
    hidden = F.mse_loss(features["mentor"], model.projection(features["mentee"]))
    loss = FedKD().loss(model, Batch(x, y), {})
    for own, other, moved in [("mentor", "mentee", ["mentor"]), ("mentee", "mentor", ["mentee", "projection"])]:
        kl = F.kl_div(logits[own].log_softmax(1), logits[other].softmax(1), reduction="batchmean")
        expected = task[own] + (kl + hidden) / (task["mentor"] + task["mentee"])
        leaves = [p for part in moved for p in getattr(model, part).parameters()]
        # The other model's parameters are not asked for, so its outputs are constants.
        found = torch.autograd.grad(loss, leaves, retain_graph=True)
        for a, b in zip(found, torch.autograd.grad(expected, leaves, retain_graph=True), strict=True):
            torch.testing.assert_close(a, b)


def test_mentor_and_mentee_may_end_in_different_widths() -> None:
    simulation = finished("fedkd", make_task("cnn-pm,cnn5"), rounds=1)
    assert [tuple(simulation.client_state(k)["projection.weight"].shape) for k in (0, 1)] == [(512, 500), (500, 500)]
    assert simulation.note == ""
