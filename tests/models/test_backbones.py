import pytest
import torch
from torch import nn

from fedexperts.config import TaskSettings
from fedexperts.errors import SettingsError
from fedexperts.models import BatchNorm, build, is_backbone, out_shape

IMAGE = (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "parameters", "features"),
    [
        ("resnet18", 11_173_962, 512),
        ("resnet34", 21_282_122, 512),
        ("mobilenet", 3_217_226, 1024),
        ("googlenet", 6_166_250 - 7_904, 1024),  # as usual, without the biases before BatchNorm
        ("mobilenet-512", 3_217_226 - 5_120, 512),  # a narrower head
        ("googlenet-512", 6_166_250 - 7_904 - 5_120, 512),
    ],
)
def test_sizes_are_the_known_ones_of_the_32_pixel_variants(name: str, parameters: int, features: int) -> None:
    with torch.device("meta"):
        parts = build(name, IMAGE, 10)
    assert sum(p.numel() for part in parts.values() for p in part.parameters()) == parameters
    assert parts["extractor"].features == features
    assert is_backbone(name)


@pytest.mark.parametrize(("side", "after"), [(8, 8), (32, 32), (63, 63), (64, 32), (128, 32), (224, 56)])
def test_large_images_are_shrunk_at_once(side: int, after: int) -> None:
    layers = dict(build("resnet18/16", (3, side, side), 10)["extractor"].named_children())
    first = nn.Sequential(*[layers[name] for name in ("conv1", "norm1", "relu1", "pool1") if name in layers])
    assert out_shape(first, (3, side, side)) == (4, after, after)
    assert out_shape(layers["block2-1"], (4, after, after))[0] == 8


@pytest.mark.parametrize("name", ["resnet34", "mobilenet", "googlenet"])
@pytest.mark.parametrize("side", [8, 32])
def test_batches_of_one(name: str, side: int) -> None:
    extractor = build(f"{name}/16", (1, side, side), 4)["extractor"]
    extractor(torch.randn(1, 1, side, side)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in extractor.parameters())
    assert all(t.isfinite().all() for t in extractor.state_dict().values())


def test_one_value_is_normalised_by_the_running_statistics() -> None:
    ours, theirs = BatchNorm(3), nn.BatchNorm2d(3)
    for _ in range(3):
        x = torch.randn(5, 3, 2, 2) * 2 + 1
        assert torch.equal(ours(x), theirs(x))
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    alone = torch.randn(1, 3, 1, 1)
    assert torch.equal(ours(alone), theirs.eval()(alone))
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.state_dict().items())


def test_joined_features_are_means_of_neighbours() -> None:
    torch.manual_seed(0)
    wide = build("googlenet/16", IMAGE, 10)["extractor"].eval()
    narrow = build("googlenet-512/16", IMAGE, 10)["extractor"].eval()
    narrow.load_state_dict(wide.state_dict())
    x = torch.randn(2, *IMAGE)
    torch.testing.assert_close(narrow(x), (wide(x)[:, ::2] + wide(x)[:, 1::2]) / 2)


def test_looking_at_a_shape_leaves_no_trace() -> None:
    extractor = build("resnet18/16", IMAGE, 10)["extractor"]
    before = {name: tensor.clone() for name, tensor in extractor.state_dict().items()}
    assert out_shape(extractor, IMAGE) == (32,)
    assert extractor.training
    assert all(torch.equal(before[name], tensor) for name, tensor in extractor.state_dict().items())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet19", "unknown model 'resnet19'; did you mean 'resnet18'"),
        ("resnet18/3", "no model 'resnet18/3'.*by 2, 4, 8, 16: resnet18/8"),
        ("resnet18/", "no model 'resnet18/'"),
        ("fasttext/2", "no model 'fasttext/2': cnn1, .*resnet18, .* may be slimmer"),
    ],
)
def test_names_that_are_none(name: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        build(name, IMAGE, 10)


def test_several_models_by_one_name_end_alike() -> None:
    names = TaskSettings.check({"model": "backbones"}).model
    with torch.device("meta"):
        assert [build(name, IMAGE, 10)["extractor"].features for name in names] == [512] * 4
