"""One client's data: what it trains on, chooses its round by, and is tested on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedexperts.config import TaskSettings
from fedexperts.data.counts import apportion, deal
from fedexperts.data.parts import Array, Indices
from fedexperts.errors import DataError
from fedexperts.randomness import stream

MIN_TRAIN = 2


@dataclass(frozen=True, eq=False)
class ClientData:
    """Positions in the data set, sorted; no sample is in two of them."""

    train: Indices
    validation: Indices
    test: Indices


def split(owned: Array, labels: Array, settings: TaskSettings, client: int) -> ClientData:
    """Divide a client's samples so that all three parts have its mix of classes.

    `test_fraction` of all is for testing, `validation_fraction` of the rest for validation. Depends on
    the seed and the client's number, not on other clients.
    """
    test = max(1, round(len(owned) * settings.test_fraction))
    validation = max(1, round((len(owned) - test) * settings.validation_fraction))
    train = len(owned) - test - validation
    if train < MIN_TRAIN:
        raise DataError(
            f"client {client} has {len(owned)} samples, {test} for testing and {validation} for validation: "
            f"{max(train, 0)} are left to train on, {MIN_TRAIN} are needed. Give it more samples, or "
            f"lower test_fraction={settings.test_fraction:g} "
            f"or validation_fraction={settings.validation_fraction:g}"
        )
    rng = stream(settings.seed, "split", client)
    _, own_labels, have = np.unique(labels[owned], return_inverse=True, return_counts=True)
    tested = apportion(np.array([test]), have[None], rng)[0]
    validated = apportion(np.array([validation]), (have - tested)[None], rng)[0]
    counts = np.stack([have - tested - validated, validated, tested])
    return ClientData(*(owned[places] for places in deal(own_labels, counts, rng)))


def label_counts(parts: Sequence[Array], labels: Array, classes: int) -> Indices:
    """How many samples of each class each part has: clients × classes."""
    counts = [np.bincount(labels[part], minlength=classes) for part in parts]
    return np.array(counts, np.int64).reshape(len(parts), classes)
