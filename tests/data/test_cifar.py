"""CIFAR's pickles: read exactly, and never trusted."""

import io
import os
import pickle
import struct
from typing import ClassVar

import numpy as np
import pytest

from fedexperts.data import known, load
from fedexperts.errors import DataError

RNG = np.random.default_rng(0)


class Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 wrote its strings, as in the published files."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, value):
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes


def python2(content):
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(content)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def write_cifar(folder, name="cifar10", dump=python2):
    """Three images per batch; returns the folder with them, the pixels N×3072 and the labels."""
    info = known()[name]
    folder = folder / info.folders[0]
    folder.mkdir()
    kind = b"fine_label" if name == "cifar100" else b"label"
    *batches, meta = info.files
    pixels = RNG.integers(0, 256, (3 * len(batches), 3072), dtype=np.uint8)
    labels = RNG.integers(0, info.classes, 3 * len(batches))
    for i, batch in enumerate(batches):
        mine = slice(3 * i, 3 * i + 3)
        content = {b"data": pixels[mine], kind + b"s": labels[mine].tolist(), b"batch_label": b"one of some"}
        if name == "cifar100":
            content[b"coarse_labels"] = [0, 0, 0]
        (folder / batch).write_bytes(dump(content))
    names = [f"class {i}".encode() for i in range(info.classes)]
    (folder / meta).write_bytes(dump({kind + b"_names": names, b"num_vis": 3072}))
    return folder, pixels, labels


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("dump", [python2, lambda content: pickle.dumps(content, protocol=4)])
def test_the_batches_are_read_exactly(tmp_path, name, dump):
    _, pixels, labels = write_cifar(tmp_path, name, dump)
    dataset = load(name, tmp_path)
    assert np.array_equal(dataset.inputs.reshape(len(pixels), 3072), pixels)
    assert dataset.inputs.shape[1:] == (3, 32, 32)
    assert np.array_equal(dataset.labels, labels)
    assert dataset.class_names[:2] == ("class 0", "class 1")


def test_an_array_that_was_kept_by_columns_is_read_the_same(tmp_path):
    folder, pixels, _ = write_cifar(tmp_path)
    labels = [4, 5, 6]
    (folder / "data_batch_1").write_bytes(python2({b"data": np.asfortranarray(pixels[:3]), b"labels": labels}))
    dataset = load("cifar10", tmp_path)
    assert np.array_equal(dataset.inputs.reshape(len(pixels), 3072), pixels)
    assert dataset.labels[:3].tolist() == labels


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_wants_to_run_something_does_not(tmp_path):
    folder, *_ = write_cifar(tmp_path)
    trace = tmp_path / "was here"
    (folder / "data_batch_2").write_bytes(pickle.dumps({b"data": Harmful(trace), b"labels": [1]}))
    with pytest.raises(DataError, match=r"data_batch_2 cannot be read .* asks for (posix|nt)\.mkdir"):
        load("cifar10", tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"data": np.zeros((1, 3072), np.uint8)}, r"data_batch_2 cannot be read .*KeyError: 'labels'"),
        ({b"data": np.zeros((1, 3072)), b"labels": [1]}, r"data_batch_2 cannot .* values of type b?'f8'"),
        ({b"data": np.zeros((1, 3072), object), b"labels": [1]}, r"data_batch_2 cannot .* type b?'O8'"),
        ({b"data": np.zeros((1, 3000), np.uint8), b"labels": [1]}, r"data_batch_2 cannot .* reshape"),
        ({b"data": [1, 2, 3], b"labels": [1]}, r"data_batch_2 cannot be read as a CIFAR batch"),
        ([1, 2, 3], r"data_batch_2 cannot be read as a CIFAR batch"),
        (
            {b"data": np.zeros((1, 3072), np.uint8), b"labels": [1, 2]},
            r"data_batch_2 has 1 samples but 2 labels",
        ),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}, r"data_batch_2 has labels from 10 to 10"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["a"]}, r"data_batch_2 has labels of type <U1"),
    ],
)
def test_a_batch_with_wrong_content_is_named(tmp_path, content, message):
    folder, *_ = write_cifar(tmp_path)
    (folder / "data_batch_2").write_bytes(python2(content))
    with pytest.raises(DataError, match=message):
        load("cifar10", tmp_path)


def test_damaged_and_missing_batches_are_named(tmp_path):
    folder, *_ = write_cifar(tmp_path)
    path = folder / "test_batch"
    whole = path.read_bytes()
    for content in (b"", b"no pickle", whole[:1000], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="test_batch cannot be read as a CIFAR batch"):
            load("cifar10", tmp_path)
    path.write_bytes(whole)
    (folder / "batches.meta").write_bytes(python2({b"label_names": [b"cat"]}))
    with pytest.raises(DataError, match="names 1 classes; CIFAR-10 has 10"):
        load("cifar10", tmp_path)
    (folder / "batches.meta").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-py has data_batch_1, .* but lacks batches.meta"):
        load("cifar10", tmp_path)
