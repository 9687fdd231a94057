"""IDX, MATLAB and CSV files as their publishers make them."""

import csv
import gzip

import numpy as np
import pytest
from scipy.io import savemat

from fedexperts.data import load
from fedexperts.errors import DataError

RNG = np.random.default_rng(0)
MNIST = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
EMNIST = tuple("emnist-letters-" + name.replace("t10k", "test") for name in MNIST)


def idx(values):
    values = np.asarray(values, np.uint8)
    return bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def write_idx(folder, names=MNIST, first=0):
    """Six images for training and four for testing; what was written comes back."""
    folder.mkdir(parents=True, exist_ok=True)
    images = RNG.integers(0, 256, (10, 28, 28), dtype=np.uint8)
    labels = RNG.integers(0, 10, 10, dtype=np.uint8)
    contents = (images[:6], labels[:6] + first, images[6:], labels[6:] + first)
    for name, content in zip(names, contents, strict=True):
        packed = gzip.compress(idx(content)) if name.endswith(".gz") else idx(content)
        (folder / name).write_bytes(packed)
    return images, labels


@pytest.mark.parametrize("place", [".", "MNIST", "MNIST/raw", "mnist"])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("dotted", [False, True])
def test_mnist_in_all_its_spellings(tmp_path, place, ending, dotted):
    names = tuple((name.replace("-idx", ".idx") if dotted else name) + ending for name in MNIST)
    images, labels = write_idx(tmp_path / place, names)
    mnist = load("mnist", tmp_path)
    assert np.array_equal(mnist.inputs[:, 0], images)
    assert np.array_equal(mnist.labels, labels)
    assert mnist.note.startswith(f"from {tmp_path / place}")


def test_fashion_mnist_prefers_its_own_folder(tmp_path):
    write_idx(tmp_path)  # the same names: probably MNIST
    images, labels = write_idx(tmp_path / "FashionMNIST" / "raw")
    fashion = load("fashion-mnist", tmp_path)
    assert np.array_equal(fashion.inputs[:, 0], images)
    assert np.array_equal(fashion.labels, labels)
    assert fashion.class_names[9] == "Ankle boot"


def test_emnist_images_are_turned_and_its_letters_counted_from_zero(tmp_path):
    images, labels = write_idx(tmp_path / "gzip", tuple(name + ".gz" for name in EMNIST), first=1)
    letters = load("emnist", tmp_path)
    assert np.array_equal(letters.inputs[:, 0], images.transpose(0, 2, 1))
    assert letters.inputs.flags.c_contiguous
    assert np.array_equal(letters.labels, labels)
    assert (letters.classes, letters.class_names[25]) == (26, "Z")
    write_idx(tmp_path / "gzip", tuple(name + ".gz" for name in EMNIST), first=17)
    (tmp_path / "gzip" / (EMNIST[1] + ".gz")).write_bytes(gzip.compress(idx([0, 1, 2, 3, 4, 5])))
    with pytest.raises(DataError, match="labels from 0 to 5; of 26 classes they run from 1 to 26"):
        load("emnist", tmp_path)


def test_the_plain_form_comes_first(tmp_path):
    write_idx(tmp_path)
    values = np.full((1, 28, 28), 77, np.uint8)
    np.savez(tmp_path / "mnist.npz", x_train=values, y_train=[1], x_test=values, y_test=[1])
    assert np.all(load("mnist", tmp_path).inputs == 77)


def test_a_missing_idx_file_is_named(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="but lacks t10k-labels-idx1-ubyte; all of train-images-idx3-ubyte, "):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            MNIST[0],
            idx(np.zeros((6, 28, 28)))[:-5],
            "announces 4,704 values but holds 4,699; is it truncated",
        ),
        (MNIST[0], b"", "is no IDX file of unsigned bytes with 3 dimensions"),
        (MNIST[0], idx([1, 2, 3]), "is no IDX file of unsigned bytes with 3 dimensions"),
        (MNIST[0], idx(np.zeros((6, 28, 28)))[:9], "announces|cannot be read as an IDX file"),
        (MNIST[0], idx(np.zeros((6, 27, 28))), r"values of shape \(6, 27, 28\); mnist is .* \(N, 28, 28\)$"),
        (MNIST[1], idx([0, 1, 2, 3, 4]), "has 6 samples but 5 labels"),
        (MNIST[1], idx([0, 1, 2, 3, 4, 10]), "labels from 0 to 10; of 10 classes they run from 0 to 9"),
        (MNIST[1] + ".gz", b"not gzip", "cannot be read as an IDX file"),
        (MNIST[1] + ".gz", gzip.compress(idx([0, 1, 2, 3, 4, 5]), mtime=0)[:-6], "cannot be read as an IDX file"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, name, content, message):
    write_idx(tmp_path)
    if name.endswith(".gz"):
        (tmp_path / name.removesuffix(".gz")).unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        load("mnist", tmp_path)
    assert name in str(error.value)


def write_svhn(folder, labels_of_test=(4, 10), pixels=32):
    train, test = (RNG.integers(0, 256, (pixels, pixels, 3, n), dtype=np.uint8) for n in (3, 2))
    savemat(folder / "train_32x32.mat", {"X": train, "y": np.array([[1], [10], [9]], np.uint8)})
    savemat(folder / "test_32x32.mat", {"X": test, "y": np.array(labels_of_test)[:, None]}, do_compression=True)
    return np.concatenate([train, test], axis=3)


@pytest.mark.parametrize("place", [".", "svhn", "SVHN"])
def test_svhn_calls_zero_ten(tmp_path, place):
    (tmp_path / place).mkdir(exist_ok=True)
    pixels = write_svhn(tmp_path / place)
    svhn = load("svhn", tmp_path)
    assert np.array_equal(svhn.inputs, pixels.transpose(3, 2, 0, 1))
    assert svhn.inputs.flags.c_contiguous
    assert svhn.labels.tolist() == [1, 0, 9, 4, 0]


def test_damaged_svhn_files_are_named(tmp_path):
    write_svhn(tmp_path, labels_of_test=(4, 11))
    with pytest.raises(DataError, match=r"test_32x32.mat has labels from 4 to 11"):
        load("svhn", tmp_path)
    write_svhn(tmp_path, pixels=30)
    with pytest.raises(DataError, match=r"train_32x32.mat holds uint8 values of shape \(3, 30, 30, 3\); svhn is"):
        load("svhn", tmp_path)
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 1), np.uint8)})
    with pytest.raises(DataError, match=r"train_32x32.mat cannot be read as a MATLAB file with X and y"):
        load("svhn", tmp_path)
    write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"test_32x32.mat cannot be read as a MATLAB file"):
        load("svhn", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"has train_32x32.mat of SVHN .* but lacks test_32x32.mat"):
        load("svhn", tmp_path)


def write_news(folder, *rows, name="train.csv"):
    folder.mkdir(exist_ok=True)
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


@pytest.mark.parametrize("place", [".", "ag_news", "ag_news_csv"])
@pytest.mark.parametrize("header", [False, True])
def test_ag_news_is_title_and_description(tmp_path, place, header):
    top = [("Class Index", "Title", "Description")] if header else []
    write_news(tmp_path / place, *top, (3, 'Oil "up", again', "Prices,\nso they say"), (4, "Käfer", ""))
    write_news(tmp_path / place, *top, (1, "Talks", "go on"), name="test.csv")
    news = load("ag-news", tmp_path)
    assert news.inputs.tolist() == ['Oil "up", again Prices,\nso they say', "Käfer", "Talks go on"]
    assert news.labels.tolist() == [2, 3, 0]
    assert news.class_names[2] == "Business"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [(1, "a", "b"), (2, "only two")],
            r"train.csv, line 2: expected class, title, description, found \[",
        ),
        ([("x", "a", "b")], r"train.csv, line 1: expected class"),
        ([(5, "a", "b")], r"train.csv has labels from 5 to 5; of 4 classes they run from 1 to 4"),
        ([], r"train.csv holds no samples"),
    ],
)
def test_damaged_news_are_named_with_the_line(tmp_path, rows, message):
    write_news(tmp_path, *rows)
    write_news(tmp_path, (1, "a", "b"), name="test.csv")
    with pytest.raises(DataError, match=message):
        load("ag-news", tmp_path)


def test_news_in_another_encoding_are_refused(tmp_path):
    write_news(tmp_path, (1, "a", "b"), name="test.csv")
    (tmp_path / "train.csv").write_bytes('"1","Käfer","b"\n'.encode("latin-1"))
    with pytest.raises(DataError, match=r"train.csv cannot be read as a CSV file \(UnicodeDecodeError"):
        load("ag-news", tmp_path)
