"""The hub's layout, written by the hub's own library."""

import sys

import datasets
import numpy as np
import pytest
from PIL import Image

from fedexperts.data import known, load
from fedexperts.errors import DataError

RNG = np.random.default_rng(0)
LAYOUTS = {
    "mnist": ("mnist", "image", "label", "test"),
    "fashion-mnist": ("fashion_mnist", "image", "label", "test"),
    "emnist": ("emnist-letters", "image", "label", "test"),
    "cifar10": ("plain_text", "img", "label", "test"),
    "cifar100": ("cifar100", "img", "fine_label", "test"),
    "svhn": ("cropped_digits", "image", "label", "test"),
    "tiny-imagenet": ("data", "image", "label", "valid"),
    "ag-news": ("data", "text", "label", "test"),
}


def write(folder, name, split, count, shard="00000-of-00001", **columns):
    """A few random samples of a set as one parquet file; returns inputs and labels."""
    info, (_, inputs, labels, _) = known()[name], LAYOUTS[name]
    numbers = RNG.integers(0, info.classes, count)
    if info.shape is None:
        values = np.array([f"text {i} of {split}" for i in range(count)])
        cells, feature = values.tolist(), datasets.Value("string")
    else:
        channels, *size = info.shape
        values = RNG.integers(0, 256, (count, *size, channels)[: 3 + (channels > 1)], dtype=np.uint8)
        cells, feature = [Image.fromarray(value) for value in values], datasets.Image()
    names = [f"class {i}" for i in range(info.classes)]
    content = {inputs: cells, labels: numbers.tolist(), **columns}
    features = datasets.Features({inputs: feature, labels: datasets.ClassLabel(names=names)})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}-{shard}.parquet"
    datasets.Dataset.from_dict(content, features=features).to_parquet(str(path))
    return values, numbers


def upright(name, values):
    """What the reader should make of images N×H×W[×3]."""
    if values.ndim == 1:
        return values
    images = values.reshape(*values.shape[:3], -1).transpose(0, 3, 1, 2)
    return images.swapaxes(2, 3) if name == "emnist" else images


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_clone_of_each_repository_is_read_exactly(tmp_path, name):
    inner, _, _, second = LAYOUTS[name]
    folder = tmp_path / known()[name].stem / inner
    parts = [
        write(folder, name, "train", 4, "00000-of-00002"),
        write(folder, name, "train", 3, "00001-of-00002"),
        write(folder, name, second, 2),
    ]
    dataset = load(name, tmp_path)
    assert np.array_equal(dataset.inputs, np.concatenate([upright(name, values) for values, _ in parts]))
    assert np.array_equal(dataset.labels, np.concatenate([labels for _, labels in parts]))
    assert dataset.class_names[:2] == ("class 0", "class 1")
    assert dataset.note.startswith(f"from {folder}; 9 samples")


@pytest.mark.parametrize("place", ["mnist", "mnist/data", "ylecun/mnist/mnist", "data", "."])
def test_the_places_of_a_local_copy(tmp_path, place):
    train, _ = write(tmp_path / place, "mnist", "train", 2)
    write(tmp_path / place, "mnist", "test", 1)
    assert np.array_equal(load("mnist", tmp_path).inputs[:2, 0], train)


def test_the_folder_of_another_set_is_not_touched(tmp_path):
    write(tmp_path / "cifar10", "cifar10", "train", 2)
    write(tmp_path / "cifar10", "cifar10", "test", 1)
    with pytest.raises(DataError, match="no files of CIFAR-100"):
        load("cifar100", tmp_path)


def test_what_is_wrong_with_a_copy_is_named(tmp_path):
    folder = tmp_path / "mnist"
    write(folder, "mnist", "train", 2)
    with pytest.raises(DataError, match=r"mnist has a part of MNIST but lacks test-\*.parquet"):
        load("mnist", tmp_path)
    write(folder, "cifar10", "test", 2)
    with pytest.raises(DataError, match="test lacks the column image; it has img, label"):
        load("mnist", tmp_path)
    write(folder, "emnist", "test", 40)
    with pytest.raises(DataError, match=r"test has labels from \d to \d\d; of 10 classes"):
        load("mnist", tmp_path)
    write(folder, "svhn", "test", 2)
    with pytest.raises(DataError, match="test, row 0 is 32×32; mnist is 28×28"):
        load("mnist", tmp_path)
    broken = {"image": [{"bytes": b"no picture", "path": None}] * 2}
    write(folder, "mnist", "test", 2, **broken)
    with pytest.raises(DataError, match="test, row 0 cannot be read as a picture"):
        load("mnist", tmp_path)
    (folder / "test-00000-of-00001.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="mnist cannot be read as parquet files"):
        load("mnist", tmp_path)


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    write(tmp_path / "mnist", "mnist", "train", 2)
    write(tmp_path / "mnist", "mnist", "test", 2)
    monkeypatch.setitem(sys.modules, "datasets", None)  # what Python itself keeps for a module that is not there
    with pytest.raises(DataError, match=r"reading .* needs .* pip install 'fedexperts\[hub\]'"):
        load("mnist", tmp_path)
    with pytest.raises(DataError, match=r"downloading SVHN .* pip install 'fedexperts\[hub\]'"):
        load("svhn", tmp_path, download=True)


@pytest.mark.parametrize("name", ["svhn", "ag-news"])
def test_a_download_is_kept_in_the_folder(tmp_path, monkeypatch, name):
    # The library takes a folder of the repository's name for the repository: a hub without a network
    monkeypatch.chdir(tmp_path)
    info, (inner, *_) = known()[name], LAYOUTS[name]
    repository = tmp_path / info.hub
    train, labels = write(repository / inner, name, "train", 5)
    write(repository / inner, name, "test", 3)
    card = f"---\nconfigs:\n- config_name: {inner}\n  data_files:\n"
    card += "".join(f"  - split: {s}\n    path: {inner}/{s}-*.parquet\n" for s in ("train", "test"))
    (repository / "README.md").write_text(card + "---\n")

    folder = tmp_path / "new" / "folder"
    fresh = load(name, folder, download=True)
    assert np.array_equal(fresh.inputs[:5], upright(name, train))
    assert np.array_equal(fresh.labels[:5], labels)
    assert [path.name for path in folder.iterdir()] == [f"{info.stem}.npz"]
    kept = load(name, folder)
    assert np.array_equal(kept.inputs, fresh.inputs)
    assert np.array_equal(kept.labels, fresh.labels)
    assert kept.class_names == fresh.class_names
    assert f"copied from huggingface.co/datasets/{info.hub}" in kept.note


def test_a_download_that_fails_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ylecun" / "mnist").mkdir(parents=True)  # a repository without data
    folder = tmp_path / "new"
    with pytest.raises(DataError, match="MNIST could not be downloaded from huggingface"):
        load("mnist", folder, download=True)
    assert not folder.exists()
