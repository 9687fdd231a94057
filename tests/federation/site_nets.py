"""Models that sites have of their own, as their operators would write them."""

import math

from torch import nn

FEATURES = 62
"""As many as cnn5/8 gives, so that a method can add what both find."""


def small(shape: tuple[int, ...], classes: int) -> nn.Module:
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * (height // 2) * (width // 2), FEATURES),
        nn.ReLU(),
        nn.Linear(FEATURES, classes),
    )


def plain(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), FEATURES), nn.ReLU(), nn.Linear(FEATURES, classes, bias=False)
    )


def other(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Not for the task of these tests: it knows three classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), FEATURES), nn.ReLU(), nn.Linear(FEATURES, 3))


def reader(shape: tuple[int, ...], classes: int) -> nn.Module:
    """For texts; it ends in as many features as fasttext does."""
    words, known = shape
    return nn.Sequential(
        nn.Embedding(known, 4), nn.Flatten(), nn.Linear(4 * words, 32), nn.ReLU(), nn.Linear(32, classes)
    )
