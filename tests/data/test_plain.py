"""The plain `.npz` form."""

import numpy as np
import pytest

from fedexperts.data import known, load
from fedexperts.errors import DataError

RNG = np.random.default_rng(0)


def images(count, *shape):
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def arrays(**changes):
    """What a CIFAR-10 file holds; None removes an entry."""
    content = {
        "x_train": images(7, 32, 32, 3),
        "y_train": np.arange(7, dtype=np.uint8),
        "x_test": images(5, 32, 32, 3),
        "y_test": np.arange(5, dtype=np.uint8),
        **changes,
    }
    return {key: value for key, value in content.items() if value is not None}


@pytest.mark.parametrize("name", [name for name, info in known().items() if info.stem and info.shape])
def test_every_image_set_is_read_exactly(tmp_path, name):
    info = known()[name]
    channels, height, width = info.shape
    shape = (height, width) if channels == 1 else (height, width, channels)
    train, test = images(6, *shape), images(4, *shape)
    names = np.array([f"class {i}" for i in range(info.classes)])
    y_train, y_test = RNG.integers(0, info.classes, 6), RNG.integers(0, info.classes, 4)
    np.savez(
        tmp_path / f"{info.stem}.npz",
        **{"x_train": train, "y_train": y_train, "x_test": test, "y_test": y_test, "class_names": names},
    )
    dataset = load(name, tmp_path)
    pooled = np.concatenate([train, test]).reshape(10, height, width, channels)
    assert dataset.inputs.shape == (10, channels, height, width)
    assert dataset.inputs.dtype == np.uint8
    assert dataset.inputs.flags.c_contiguous
    assert np.array_equal(dataset.inputs.transpose(0, 2, 3, 1), pooled)
    assert dataset.labels.tolist() == [*y_train, *y_test]
    assert dataset.labels.dtype == np.int64
    assert dataset.class_names == tuple(names)


def test_texts_are_read_exactly(tmp_path):
    np.savez(
        tmp_path / "ag_news.npz",
        text_train=np.array(["Märkte fallen", "ein Tor"]),
        y_train=np.array([2, 1]),
        text_test=np.array(["a much longer text than the others"]),
        y_test=np.array([3]),
    )
    news = load("ag-news", tmp_path)
    assert news.inputs.tolist() == ["Märkte fallen", "ein Tor", "a much longer text than the others"]
    assert news.labels.tolist() == [2, 1, 3]
    assert (news.kind, news.classes) == ("text", 4)
    assert news.class_names == ("World", "Sports", "Business", "Sci/Tech")


def test_a_reduced_size_is_taken_where_it_is_common_and_the_note_says_so(tmp_path):
    small = {"x_train": images(2, 32, 32, 3), "y_train": np.array([0, 199]), "y_test": np.array([5])}
    np.savez(tmp_path / "tiny_imagenet.npz", **small, x_test=images(1, 32, 32, 3), note=np.array("JPEG q75"))
    tiny = load("tiny-imagenet", tmp_path)
    assert tiny.inputs.shape == (3, 3, 32, 32)
    assert "; JPEG q75; " in tiny.note
    assert tiny.note.endswith("images of 32×32, published are 64×64")
    np.savez(tmp_path / "tiny_imagenet.npz", **small, x_test=images(1, 64, 64, 3))
    with pytest.raises(DataError, match=r"tiny_imagenet.npz has images of different sizes"):
        load("tiny-imagenet", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, r"lacks y_test; it should hold x_train, y_train, x_test, y_test"),
        ({"x_train": images(7, 32, 32, 3) / 255}, r"\(x_train, y_train\) holds float64 .* cifar10 is uint8"),
        (
            {"x_train": images(7, 28, 28, 3)},
            r"shape \(7, 28, 28, 3\); cifar10 is uint8 images, \(N, 32, 32, 3\)",
        ),
        ({"x_train": images(7, 32, 32)}, r"shape \(7, 32, 32\); cifar10 is"),
        ({"x_train": images(7, 3072)}, r"shape \(7, 3072\); cifar10 is"),
        ({"x_train": np.uint8(3)}, r"holds uint8 values of shape \(\); cifar10 is"),
        ({"x_test": images(6, 32, 32, 3)}, r"\(x_test, y_test\) has 6 samples but 5 labels"),
        ({"y_test": np.arange(6, 11)}, r"\(x_test, y_test\) has labels from 6 to 10; of 10 .* 0 to 9"),
        ({"y_train": np.arange(-1, 6)}, r"\(x_train, y_train\) has labels from -1 to 5"),
        ({"y_train": np.arange(7.0)}, r"labels of type float64 and shape \(7,\)"),
        ({"y_train": np.zeros((7, 1), int)}, r"labels of type int64 and shape \(7, 1\)"),
        (
            {"x_test": images(0, 32, 32, 3), "y_test": np.zeros(0, int)},
            r"\(x_test, y_test\) holds no samples",
        ),
        ({"class_names": np.array(["cat", "dog"])}, r"names 2 classes; CIFAR-10 has 10"),
        ({"x_train": np.array([{}, {}], object)}, r"cifar10.npz cannot be read as an .npz file \(ValueError"),
    ],
)
def test_what_is_wrong_inside_is_named(tmp_path, changes, message):
    np.savez(tmp_path / "cifar10.npz", **arrays(**changes))
    with pytest.raises(DataError, match=message) as error:
        load("cifar10", tmp_path)
    assert str(tmp_path / "cifar10.npz") in str(error.value)


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "cifar10.npz"
    np.savez(path, **arrays())
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 255
    single = tmp_path / "single.npy"
    np.save(single, np.zeros(3))
    for content in (b"", b"no archive", whole[: len(whole) // 2], bytes(flipped), single.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"cifar10.npz cannot be read as an .npz file"):
            load("cifar10", tmp_path)
