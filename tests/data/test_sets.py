"""Sets by name, the folder they come from, and what is said when they are not there."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedexperts.data import Dataset, known, load
from fedexperts.errors import DataError

FROM_FILES = [name for name in known() if name != "digits"]


def write_npz(folder, stem, **changes):
    """A small MNIST-like file."""
    arrays = {
        "x_train": np.zeros((6, 28, 28), np.uint8),
        "y_train": np.arange(6),
        "x_test": np.ones((4, 28, 28), np.uint8),
        "y_test": np.arange(4),
    }
    np.savez(folder / f"{stem}.npz", **{**arrays, **changes})


def test_digits_need_no_files():
    digits, published = load("digits"), load_digits()
    assert digits.inputs.shape == (1797, 1, 8, 8)
    assert digits.inputs.dtype == np.uint8
    assert np.array_equal(digits.inputs[:, 0], np.round(published.images * 255 / 16))
    assert np.array_equal(digits.labels, published.target)
    assert (digits.kind, digits.classes, len(digits)) == ("image", 10, 1797)


@pytest.mark.parametrize("name", ["fashion-mnist", "fashion_mnist", "FashionMNIST", "Fashion MNIST"])
def test_case_dashes_and_underscores_do_not_matter(tmp_path, name):
    write_npz(tmp_path, "fashion_mnist")
    assert load(name, tmp_path).name == "fashion-mnist"


def test_a_set_is_also_known_by_the_name_of_its_file(tmp_path):
    write_npz(tmp_path, "emnist_letters")
    assert load("emnist-letters", tmp_path).name == "emnist"


def test_an_unknown_name_brings_the_nearest_and_the_list():
    with pytest.raises(DataError, match=r"unknown data set 'fashon'; did you mean 'fashion-mnist'\?.*svhn"):
        load("fashon")
    with pytest.raises(DataError, match=r"unknown data set 'qqq'\. Known are: digits, mnist"):
        load("qqq")


def test_the_folder_is_the_argument_or_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDEXPERTS_DATA", raising=False)
    with pytest.raises(DataError, match=r"MNIST is read from files: name their folder .* FEDEXPERTS_DATA"):
        load("mnist")
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, value in ((here, 1), (there, 2)):
        folder.mkdir()
        write_npz(folder, "mnist", x_train=np.full((6, 28, 28), value, np.uint8))
    monkeypatch.setenv("FEDEXPERTS_DATA", str(there))
    assert load("mnist").inputs[0, 0, 0, 0] == 2
    assert load("mnist", here).inputs[0, 0, 0, 0] == 1


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        load("mnist", tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file is not a folder"):
        load("mnist", tmp_path / "file", download=True)


@pytest.mark.parametrize("name", FROM_FILES)
def test_missing_files_are_listed_with_every_form_that_would_do(tmp_path, name):
    info = known()[name]
    with pytest.raises(DataError) as error:
        load(name, tmp_path)
    text = str(error.value)
    assert f"no files of {info.title} in {tmp_path}" in text
    for wanted in (f"{info.stem}.npz", *info.files, f"{info.stem}/train-*.parquet", info.hub):
        assert wanted in text
    assert text.endswith("or fetch it from there with --download")


def test_train_and_test_are_pooled_and_the_note_says_what_differs(tmp_path):
    write_npz(tmp_path, "mnist")
    mnist = load("mnist", tmp_path)
    assert mnist.inputs[:, 0, 0, 0].tolist() == [0] * 6 + [1] * 4
    assert mnist.labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert mnist.note == f"from {tmp_path / 'mnist.npz'}; 10 samples, published are 70,000"


@pytest.mark.parametrize(("asked", "there"), [("mnist", "fashion-mnist"), ("fashion-mnist", "mnist")])
def test_one_set_in_the_files_of_the_other_is_recognised(tmp_path, asked, there):
    start = np.array(known()[there].first_labels)
    write_npz(tmp_path, known()[asked].stem, x_train=np.zeros((10, 28, 28), np.uint8), y_train=start)
    with pytest.raises(DataError, match=f"holds {known()[there].title}, not {known()[asked].title}"):
        load(asked, tmp_path)


def test_a_set_of_ones_own_is_checked():
    images, labels = np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 1, 0])
    assert Dataset("own", images, labels, ("no", "yes")).kind == "image"
    assert Dataset("own", np.array(["a", "b", "c", "d"]), labels, ("no", "yes")).kind == "text"
    with pytest.raises(DataError, match=r"'own' has float64 inputs of shape \(4, 1, 2, 2\)"):
        Dataset("own", images.astype(float), labels, ("no", "yes"))
    with pytest.raises(DataError, match="contiguous"):
        Dataset("own", np.zeros((4, 2, 3, 1), np.uint8).transpose(0, 3, 2, 1), labels, ("no", "yes"))
    with pytest.raises(DataError, match="'own' has labels from 0 to 1; of 1 classes"):
        Dataset("own", images, labels, ("no",))
    with pytest.raises(DataError, match="'own' has 4 samples but 3 labels"):
        Dataset("own", images, labels[:3], ("no", "yes"))


def test_some_samples_are_drawn_with_the_classes_of_all():
    whole = load("digits")
    some = whole.drawn(300, seed=4)
    have, kept = (np.bincount(part.labels, minlength=10) for part in (whole, some))
    assert len(some) == 300
    assert np.all(np.abs(kept - have * 300 / len(whole)) < 1)
    everything = {(image.tobytes(), label) for image, label in zip(whole.inputs, whole.labels, strict=True)}
    assert {(image.tobytes(), label) for image, label in zip(some.inputs, some.labels, strict=True)} <= everything
    assert np.array_equal(some.inputs, whole.drawn(300, seed=4).inputs)
    assert not np.array_equal(some.inputs, whole.drawn(300, seed=5).inputs)
    assert "300 of its 1,797 samples" in some.note


def test_more_samples_than_there_are():
    with pytest.raises(DataError, match=r"samples is 1,798, but data set 'digits' has 1,797"):
        load("digits").drawn(1798, seed=0)
