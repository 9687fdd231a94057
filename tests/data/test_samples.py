"""Samples of the user's own: what is taken, as what, and what is said where it cannot be."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedexperts.data import Samples, Scale, Sums, classes_of, numbered
from fedexperts.data.form import Form, as_inputs
from fedexperts.errors import DataError


@pytest.mark.parametrize(
    ("given", "shape", "dtype"),
    [
        (np.zeros((5, 8, 9), np.uint8), (5, 1, 8, 9), np.uint8),
        (np.zeros((5, 8, 9, 3), np.uint8), (5, 3, 8, 9), np.uint8),
        (np.zeros((5, 3, 8, 9), np.uint8), (5, 3, 8, 9), np.uint8),
        (np.zeros((5, 3, 8, 3), np.uint8), (5, 3, 8, 3), np.uint8),  # both could be: first, as torch has them
        (torch.zeros(5, 3, 8, 9, requires_grad=True), (5, 3, 8, 9), np.float32),
        (np.zeros((5, 7)), (5, 7), np.float32),
        (np.zeros((5, 7), np.uint8), (5, 7), np.float32),
        ([[1, 2], [3, 4]], (2, 2), np.float32),
        (["a b", "c"], (2,), "<U3"),
    ],
)
def test_what_arrays_become(given: object, shape: tuple[int, ...], dtype: object) -> None:
    found = as_inputs(given)
    assert (found.shape, found.dtype) == (shape, np.dtype(dtype))
    assert found.flags.c_contiguous


def test_channels_last_are_moved_not_reshaped() -> None:
    image = np.random.default_rng(0).integers(0, 255, (2, 6, 5, 3)).astype(np.uint8)
    assert np.array_equal(as_inputs(image)[1, 2], image[1, :, :, 2])


class Items(Dataset):
    """As users write them."""

    def __init__(self, inputs: list, labels: list) -> None:
        self.pairs = list(zip(inputs, labels, strict=True))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> tuple:
        return self.pairs[i]


def test_torch_datasets_are_taken() -> None:
    x, y = torch.randn(6, 1, 4, 4), torch.arange(6) % 2
    for source in (TensorDataset(x, y), Items(list(x), y.tolist()), (x, y), (x.numpy(), y.tolist())):
        found = Samples.of(source, "here")
        assert np.array_equal(found.inputs, x.numpy())
        assert found.labels.tolist() == y.tolist()
    assert Samples.of(Items(["a", "b c"], [0, 1]), "here").inputs.tolist() == ["a", "b c"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ((np.zeros((3, 4, 5)), [0, 1, 0]), r"client a, train: samples of two dimensions \(4, 5\) are not taken"),
        ((np.array([[1.0, np.nan], [2, 3]]), [0, 1]), "1 values are missing or infinite, the first in sample 0 at 1"),
        ((np.zeros(3), [0, 1, 0]), r"float64 of shape \(3,\) are no samples"),
        ((np.zeros((3, 2)), [0, 1]), "3 samples but 2 labels"),
        ((np.zeros((3, 2)), [0.0, 1.0, 0.5]), "labels are float64"),
        ("folder", "are not \\(input, label\\)"),
        ([{"image": 1, "label": 0}], r"the items of a list have names \(image, label\); give pairs"),
        (7, "give \\(inputs, labels\\) or a torch Dataset with a length, not an int"),
        (
            Items([torch.zeros(2), torch.zeros(3)], [0, 1]),
            "samples have different shapes, such as \\(2,\\) and \\(3,\\)",
        ),
    ],
)
def test_what_cannot_be_taken_is_said_with_whose_it_is(source: object, says: str) -> None:
    with pytest.raises(DataError, match=says) as error:
        Samples.of(source, "client a, train")
    assert str(error.value).startswith("client a, train: ")


def samples(where: str, labels: list, classes: tuple[str, ...] = ()) -> Samples:
    return Samples(where, np.zeros((len(labels), 2), np.float32), np.array(labels), classes)


def test_classes_are_those_of_all_clients_together() -> None:
    assert classes_of([samples("a", [0, 1]), samples("b", [3, 0])]) == ("0", "1", "2", "3")
    named = [samples("a", ["10", "9"]), samples("b", ["x", "9"])]
    assert classes_of(named) == ("9", "10", "x")
    assert numbered(named[1], ("9", "10", "x")).tolist() == [2, 0]
    assert numbered(samples("a", [1, 0]), ("no", "yes")).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("every", "says"),
    [
        ([samples("a", [0, 1]), samples("b", ["x", "y"])], "a has numbers for labels, b names; give all the same kind"),
        ([samples("a", ["x"]), samples("b", ["x"])], r"there is one class \('x'\) only"),
        (
            [samples("a", ["owl"], ("cat", "owl")), samples("b", ["Owl"], ("Owl", "cat"))],
            "b has no class 'owl', which a has; did you mean 'Owl'?",
        ),
        ([samples("a", ["x"], ("x",)), samples("b", ["x"], ("x", "y"))], "make an empty folder of that name"),
    ],
)
def test_classes_that_do_not_agree(every: list[Samples], says: str) -> None:
    with pytest.raises(DataError, match=says):
        classes_of(every)


def test_a_label_that_is_no_class() -> None:
    with pytest.raises(DataError, match="a has the label 'dgo', which is no class; did you mean 'dog'"):
        numbered(samples("a", ["cat", "dgo"]), ("cat", "dog"))
    with pytest.raises(DataError, match="a has labels from 0 to 5; of 2 classes they run from 0 to 1"):
        numbered(samples("a", [0, 5]), ("cat", "dog"))


def test_a_scale_follows_from_the_clients_sums() -> None:
    rng = np.random.default_rng(0)
    table = (rng.normal(size=(40, 3)) * [1, 1e4, 0] + [5, 1e6, 7]).astype(np.float32)
    scale = Scale.of([Sums.of(table[:13]), Sums.of(table[13:])])
    np.testing.assert_allclose(scale.mean, table.astype(float).mean(0))
    np.testing.assert_allclose(scale.spread[:2], table.astype(float).std(0)[:2], rtol=1e-4)
    assert scale.spread[2] == 1  # a column that never changes
    scaled = scale.apply(table)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-4)
    assert scaled.dtype == np.float32


def test_a_form_takes_samples_like_its_own() -> None:
    images = Form("image", (3, 6, 5))
    assert images.take(np.zeros((2, 6, 5, 3), np.uint8)).shape == (2, 3, 6, 5)
    table = Form("values", (3,))
    assert table.take([[1, 2, 3]]).dtype == np.float32
    for form, wrong in (
        (images, np.zeros((2, 3, 6, 5))),
        (images, np.zeros((2, 3, 6, 6), np.uint8)),
        (table, [[1, 2]]),
    ):
        with pytest.raises(DataError, match="of shape"):
            form.take(wrong)
