import math
from typing import get_args

import pytest
import torch
from torch import nn

from fedexperts.errors import SettingsError
from fedexperts.models import BACKBONES, IMAGE_MODELS, DeepGate, Gate, GateActivation, GateStart, SwitchNorm, build


@pytest.mark.parametrize(
    ("name", "mebibytes"), [("cnn1", 10.00), ("cnn2", 6.92), ("cnn3", 5.04), ("cnn4", 4.05), ("cnn5", 2.55)]
)
def test_sizes_on_cifar10_are_those_of_table_4(name: str, mebibytes: float) -> None:
    """CNN-4 as printed (FC1 = 800) is 4.05 where the table says 3.81."""
    parameters = sum(p.numel() for part in build(name, (3, 32, 32), 10).values() for p in part.parameters())
    assert parameters * 4 / 2**20 == pytest.approx(mebibytes, abs=0.0075)  # the table rounds both ways


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (2, 9, 31)])
@pytest.mark.parametrize("name", [*(n for n in IMAGE_MODELS if n not in BACKBONES), *(f"{n}/16" for n in IMAGE_MODELS)])
def test_every_model_takes_every_input_size(name: str, shape: tuple[int, int, int]) -> None:
    parts = build(name, shape, 7)
    assert list(parts) == ["extractor", "head"]
    features = parts["extractor"](torch.randn(3, *shape))
    assert features.shape == (3, parts["extractor"].features)
    assert parts["head"](features).shape == (3, 7)


def test_a_slim_one_has_all_its_widths_divided() -> None:
    parts = build("cnn4/8", (3, 32, 32), 10)
    tensors = {name: tuple(tensor.shape) for name, tensor in nn.ModuleDict(parts).state_dict().items()}
    assert {name: shape for name, shape in tensors.items() if name.endswith("weight")} == {
        "extractor.conv1.weight": (2, 3, 5, 5),
        "extractor.conv2.weight": (4, 2, 5, 5),
        "extractor.fc1.weight": (100, 4 * 5 * 5),
        "extractor.fc2.weight": (62, 100),
        "head.weight": (10, 62),
    }


def test_pooling_before_relu_is_relu_before_pooling() -> None:
    extractor = build("cnn5", (3, 32, 32), 10)["extractor"]
    x = torch.randn(4, 3, 32, 32)
    expected = x
    for i in (1, 2):
        expected = nn.functional.max_pool2d(torch.relu(extractor.get_submodule(f"conv{i}")(expected)), 2)
    for i in (1, 2):
        expected = torch.relu(extractor.get_submodule(f"fc{i}")(expected.flatten(1)))
    assert torch.equal(extractor(x), expected)


def test_unknown_model() -> None:
    with pytest.raises(SettingsError, match="unknown model 'cnn55'; did you mean 'cnn5'"):
        build("cnn55", (1, 8, 8), 10)


def test_switch_norm_with_one_kind_of_statistics_is_that_normalisation() -> None:
    x = torch.randn(16, 6) * 3 + 1
    norm = SwitchNorm(6)
    with torch.no_grad():
        norm.mean_mix.copy_(torch.tensor([40.0, -40.0]))
        norm.var_mix.copy_(torch.tensor([40.0, -40.0]))
    torch.testing.assert_close(norm(x), nn.functional.layer_norm(x, (6,)))
    with torch.no_grad():
        norm.mean_mix.neg_()
        norm.var_mix.neg_()
    batch = nn.BatchNorm1d(6)
    fresh = SwitchNorm(6)
    fresh.load_state_dict(norm.state_dict() | {"running_mean": torch.zeros(6), "running_var": torch.ones(6)})
    torch.testing.assert_close(fresh(x), batch(x))
    torch.testing.assert_close(fresh.running_mean, batch.running_mean)
    torch.testing.assert_close(fresh.running_var, batch.running_var)
    torch.testing.assert_close(fresh.eval()(x), batch.eval()(x))


def test_switch_norm_learns_its_mix() -> None:
    norm = SwitchNorm(6)
    norm(torch.randn(8, 6)).square()[:, 0].sum().backward()
    assert norm.mean_mix.grad is not None
    assert norm.mean_mix.grad.abs().sum() > 0


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_gate_weighs_each_sample(shape: tuple[int, int, int]) -> None:
    weights = Gate(math.prod(shape), width=16)(torch.randn(12, *shape))
    assert weights.shape == (12, 2)
    torch.testing.assert_close(weights.sum(1), torch.ones(12))
    assert ((weights > 0) & (weights < 1)).all()
    assert weights[:, 0].std() > 0.01


def test_the_deep_gate_begins_orthogonal() -> None:
    layers = [layer for layer in DeepGate(64, experts=20) if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [
        (64, 128),
        (128, 256),
        (256, 128),
        (128, 20),
    ]
    for weight in (layer.weight.detach() for layer in layers):
        wide = weight if weight.shape[0] <= weight.shape[1] else weight.T
        torch.testing.assert_close(wide @ wide.T, torch.eye(len(wide)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_deep_gate_has_the_layers_of_the_paper(depth: int) -> None:
    gate = DeepGate(64, experts=20, depth=depth)
    widths = [layer.out_features for layer in gate if isinstance(layer, nn.Linear)]
    assert widths == [*[128, 256, 128][: depth - 1], 20]
    assert gate(torch.randn(5, 1, 8, 8)).shape == (5, 20)


ACTIVATES = {
    "relu": nn.ReLU, "leaky-relu": nn.LeakyReLU, "prelu": nn.PReLU, "elu": nn.ELU, "selu": nn.SELU, "silu": nn.SiLU,
    "mish": nn.Mish,
}  # fmt: skip


@pytest.mark.parametrize("start", get_args(GateStart))
@pytest.mark.parametrize("activation", get_args(GateActivation))
def test_every_start_and_activation_of_the_deep_gate_gives_scores(start: GateStart, activation: GateActivation) -> None:
    gate = DeepGate(64, experts=4, activation=activation, start=start)
    scores = gate(torch.randn(50, 64))
    assert scores.isfinite().all()
    assert scores.std(0).min() > 1e-3
    between = [type(layer) for layer in list(gate)[1:] if not isinstance(layer, nn.Linear)]
    assert between == [ACTIVATES[activation]] * 3
    first = gate[1].weight.detach()  # 128 × 64
    spread = {"uniform": 3**-0.5 / 8, "normal": 1 / 8, "xavier": (2 / 192) ** 0.5, "kaiming": (2 / 64) ** 0.5}
    if start in spread:
        assert first.std().item() == pytest.approx(spread[start], rel=0.03)
        assert (first.abs().max() > 3 * spread[start]) == (start == "normal")
    if start == "spectral":
        assert torch.linalg.matrix_norm(first, 2).item() == pytest.approx(1, abs=1e-5)
