"""Clients with data of their own, for tests: arrays, and folders of every form."""

import csv
import json
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor, nn

NAMES = ("north", "south", "west")
CLASSES = ("cat", "dog", "owl")
Arrays = tuple[np.ndarray, np.ndarray]


def pictures(count: int, seed: int, side: int = 8) -> Arrays:
    """Grey squares (bytes) in three classes, by their brightness, and noise; every class is there."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 3)
    noise = rng.integers(0, 60, (count, 1, side, side))
    return (noise + 80 * labels[:, None, None, None]).astype(np.uint8), labels


def rows(count: int, seed: int) -> Arrays:
    """A table with two columns of very different scales."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 3)
    return np.stack([rng.normal(40 + 10 * labels, 4), rng.normal(3e4 + 9e3 * labels, 3e3)], axis=1), labels


def folder_of_arrays(place: Path, names: tuple[str, ...] = NAMES, train: int = 30) -> Path:
    """A folder for each client, with train.npz and test.npz."""
    for number, name in enumerate(names):
        (place / name).mkdir(parents=True)
        for split, count in (("train", train + 3 * number), ("test", 12)):
            x, y = pictures(count, seed=10 * number + len(split))
            np.savez(place / name / f"{split}.npz", x=x, y=y)
    return place


def folder_of_pictures(place: Path, side: int = 8) -> Path:
    for number, name in enumerate(NAMES):
        for split, count in (("train", 15), ("test", 6)):
            for i, (pixels, label) in enumerate(zip(*pictures(count, number, side), strict=True)):
                path = place / name / split / CLASSES[label] / f"{i:02}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels[0]).save(path)
    return place


def folder_of_tables(place: Path) -> Path:
    """Tables; the first client has its columns in another order."""
    for number, name in enumerate(NAMES):
        (place / name).mkdir(parents=True)
        for split, count in (("train", 30), ("test", 12)):
            x, y = rows(count, seed=10 * number + len(split))
            header, values = (["income", "age"], x[:, ::-1]) if number == 0 else (["age", "income"], x)
            with (place / name / f"{split}.csv").open("w", newline="") as file:
                table = csv.writer(file)
                table.writerow([*header, "label"])
                table.writerows([*row, CLASSES[label]] for row, label in zip(values.tolist(), y, strict=True))
    return place


def folder_of_texts(place: Path) -> Path:
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng(number)
        (place / name).mkdir(parents=True)
        for split, count in (("train", 30), ("test", 12)):
            lines = [
                {"text": f"A {CLASSES[k]}{rng.integers(3)} {name}", "label": CLASSES[k]} for k in _each(count, rng)
            ]
            (place / name / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return place


def _each(count: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.arange(count) % 3)


class Net(nn.Module):
    """A network whose last layer is `fc`."""

    def __init__(self, filters: int, width: int = 16) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, filters, 3), nn.BatchNorm2d(filters)
        self.fc1, self.fc = nn.Linear(filters * 9, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.norm(self.conv(x)).relu(), 2)
        return self.fc(self.fc1(x.flatten(1)).relu())


def flat(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A function that makes a network."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 16), nn.ReLU(), nn.Linear(16, classes))
