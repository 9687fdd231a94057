"""Tiny-ImageNet's folder of pictures."""

import sys

import numpy as np
import pytest
from PIL import Image

from fedexperts.data import load
from fedexperts.errors import DataError

WNIDS = [f"n{i:08}" for i in range(200)]


def picture(path, size=64, mode="RGB"):
    """A small picture, different for each path; what a decoder sees in it comes back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(list(path.parent.iterdir())))
    values = rng.integers(0, 256, (size, size) if mode == "L" else (size, size, 3), dtype=np.uint8)
    Image.fromarray(values).save(path, format="JPEG", quality=95)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.fixture
def root(tmp_path):
    """One picture per class in train/, the first one grey and two of the second; three in val/."""
    root = tmp_path / "tiny-imagenet-200"
    for i, wnid in enumerate(WNIDS):
        picture(root / "train" / wnid / "images" / f"{wnid}_0.JPEG", mode="RGB" if i else "L")
    picture(root / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_1.JPEG")
    lines = []
    for i, label in enumerate((7, 0, 199)):
        picture(root / "val" / "images" / f"val_{i}.JPEG")
        lines.append(f"val_{i}.JPEG\t{WNIDS[label]}\t0\t32\t44\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "words.txt").write_text(f"{WNIDS[0]}\tgoldfish, Carassius\n{WNIDS[2]}\tnewt\n")
    return root


def test_the_folder_is_read_exactly(root):
    tiny = load("tiny-imagenet", root.parent)
    assert tiny.inputs.shape == (204, 3, 64, 64)
    assert tiny.labels.tolist() == [0, 1, 1, *range(2, 200), 7, 0, 199]
    assert tiny.class_names[:3] == ("goldfish, Carassius", WNIDS[1], "newt")
    for row, path in (
        (0, f"train/{WNIDS[0]}/images/{WNIDS[0]}_0.JPEG"),
        (2, f"train/{WNIDS[1]}/images/{WNIDS[1]}_1.JPEG"),
        (203, "val/images/val_2.JPEG"),
    ):
        with Image.open(root / path) as image:
            assert np.array_equal(tiny.inputs[row].transpose(1, 2, 0), np.asarray(image.convert("RGB")))
    assert np.ptp(tiny.inputs[0].astype(int), axis=0).max() == 0  # grey: the same in all channels


def test_wrong_and_damaged_pictures_are_named(root):
    path = root / "train" / WNIDS[3] / "images" / f"{WNIDS[3]}_0.JPEG"
    picture(path, size=32)
    with pytest.raises(DataError, match=f"{path.name} is 32×32; tiny-imagenet is 64×64"):
        load("tiny-imagenet", root.parent)
    for content in (b"", b"no picture", (root / "val/images/val_0.JPEG").read_bytes()[:900]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{path.name} cannot be read as a picture"):
            load("tiny-imagenet", root.parent)
    path.unlink()
    with pytest.raises(DataError, match=f"{WNIDS[3]}/images holds no .JPEG pictures"):
        load("tiny-imagenet", root.parent)
    path.parent.rmdir()
    path.parent.parent.rmdir()
    with pytest.raises(DataError, match=r"train has 199 class folders; Tiny-ImageNet-200 has 200"):
        load("tiny-imagenet", root.parent)


def test_wrong_annotations_are_named(root):
    annotations = root / "val" / "val_annotations.txt"
    good = annotations.read_text()
    for bad in ("val_3.JPEG\tn99999999\t0\n", "val_3.JPEG\n"):
        annotations.write_text(good + bad)
        with pytest.raises(DataError, match=r"val_annotations.txt, line 4: expected a picture and one of"):
            load("tiny-imagenet", root.parent)
    annotations.write_text(good + f"val_3.JPEG\t{WNIDS[0]}\n")
    with pytest.raises(DataError, match=r"val_3.JPEG cannot be read as a picture \(FileNotFoundError"):
        load("tiny-imagenet", root.parent)
    annotations.unlink()
    with pytest.raises(DataError, match=r"has train, val/images of .* but lacks val/val_annotations.txt"):
        load("tiny-imagenet", root.parent)


def test_without_pillow_the_extra_is_named(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)  # what Python itself keeps for a module that is not there
    with pytest.raises(DataError, match=r"Tiny-ImageNet-200 need Pillow: pip install 'fedexperts\[images\]'"):
        load("tiny-imagenet", root.parent)
