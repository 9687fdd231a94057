"""Models of the user's own: how they come apart, and what is said of those that cannot be trained here."""

from pathlib import Path

import own
import pytest
import torch
from torch import Tensor, nn

from fedexperts.client import check
from fedexperts.errors import ModelError, SettingsError
from fedexperts.models import OwnModel, build, check_model, cut, model_ref, split, told_apart

SHAPE = (1, 8, 8)


def test_a_module_is_split_at_its_head_and_stays_as_it_was() -> None:
    net = own.Net(4).eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    parts = split(net, "fc")
    x = torch.randn(5, *SHAPE)
    assert torch.equal(parts["head"].eval()(parts["extractor"].eval()(x)), net(x))
    assert parts["extractor"].features == 16
    assert isinstance(net.fc, nn.Linear)
    with torch.no_grad():
        parts["head"].weight.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_a_function_makes_fresh_ones_and_a_module_the_same_one() -> None:
    function, module = model_ref(own.flat), model_ref(own.Net(4), "fc")
    assert str(function) == "own:flat"
    weights = [build(function, SHAPE, 3)["head"].weight for _ in range(2)]
    assert not torch.equal(*weights)
    assert torch.equal(*(build(module, SHAPE, 3)["head"].weight for _ in range(2)))
    with torch.device("meta"):
        assert build(module, SHAPE, 3)["head"].weight.is_meta
    assert [str(model) for model in told_apart([module, "cnn5", OwnModel.of(own.Net(5), "fc"), module])] == [
        "Net", "cnn5", "Net 2", "Net",
    ]  # fmt: skip


class Parts(nn.Module):
    """A module that names its parts."""

    def __init__(self, features: int = 64, classes: int = 3) -> None:
        super().__init__()
        self.extractor, self.head = nn.Flatten(), nn.Linear(features, classes)


class Soft(own.Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


class Dropping(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.extractor = nn.Sequential(nn.Flatten(), nn.Dropout(0.2))


class Keeping(Parts):
    def __init__(self, saved: bool) -> None:
        super().__init__()
        if saved:
            self.extractor.register_buffer("mask", torch.ones(64), persistent=False)
        else:
            self.extractor.mask = torch.ones(64)


class More(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("model", "head", "says"),
    [
        (own.Net(4), None, r"'Net' \(Net\) has no parts 'extractor' and 'head'; .*, perhaps head='fc'"),
        (own.Net(4), "fcc", "Net has no layer 'fcc'; did you mean 'fc'"),
        (own.Net(4), "conv", "head='conv' of Net is a Conv2d; the last layer is a Linear"),
        (Soft(4), "fc", "nothing may come after the head"),
        (Parts(classes=4), None, "ends in 4 outputs, the data have 3 classes"),
        (Parts(features=60), None, r"gives \(64,\) for a sample, its head takes 60 features"),
        (nn.Sequential(nn.Linear(9, 5), nn.Linear(5, 3)), None, r"does not take samples of shape \(1, 8, 8\)"),
        (Dropping(), None, r"has a Dropout \('1'\), whose random numbers could not be repeated"),
        (Keeping(saved=False), None, "keeps a tensor 'mask' in Flatten that is no buffer"),
        (Keeping(saved=True), None, "has a buffer 'mask' that is not saved"),
        (More(), None, "has weights in embedding, outside its parts"),
        (lambda shape, classes: 7, None, "is a int; a torch module is needed"),
        (lambda shape, classes: 1 / 0, None, "cannot be made for samples of shape .*ZeroDivisionError"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_model_is_said_with_whose_it_is(model: object, head: str | None, says: str) -> None:
    with pytest.raises(ModelError, match=says) as error:
        check(model_ref(model, head), SHAPE, 3, "client north")
    assert str(error.value).startswith("client north: ")


def test_parts_may_be_named() -> None:
    check(model_ref(Parts()), SHAPE, 3, "client north")
    assert list(build(model_ref(Parts()), SHAPE, 3)) == ["extractor", "head"]


def test_a_model_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mynets.py").write_text("from torch import nn\ndef flat(shape, classes):\n    return nn.Linear(2, 2)\n")
    (tmp_path / "broken.py").write_text("import nothing_like_it\n")
    assert check_model("mynets:flat") == "mynets:flat"
    for place, says in (
        ("mynets:flta", "mynets has no function 'flta'; did you mean 'flat'"),
        ("mynet:flat", "there is no module 'mynet'; it is looked for in"),
        ("mynets.py:flat", "leave out .py: mynets:flat"),
        ("broken:flat", "broken cannot be imported: No module named 'nothing_like_it'"),
    ):
        with pytest.raises(SettingsError, match=says):
            check_model(place)


def test_only_a_plain_sequential_can_be_cut() -> None:
    embedding, expert = cut(model_ref(own.flat), SHAPE, 3)
    x = torch.randn(4, *SHAPE)
    assert embedding(x).shape == (4, 16)
    assert expert(embedding(x)).shape == (4, 3)
    with pytest.raises(ModelError, match="model 'Net' cannot be cut"):
        cut(model_ref(own.Net(4), "fc"), SHAPE, 3)
