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
    return ClientData(*_dealt(owned, labels, (validation, test), settings.seed, client))


def split_own(train: Array, test: Array, labels: Array, settings: TaskSettings, client: int, name: str) -> ClientData:
    """A client that brings its own test data: of its training data `validation_fraction` is for validation."""
    validation = max(1, round(len(train) * settings.validation_fraction))
    if len(train) - validation < MIN_TRAIN or not len(test):
        raise DataError(
            f"client {name} has {len(train)} training and {len(test)} test samples; {MIN_TRAIN + 1} to train and to "
            "choose the round by, and 1 to test, are the least"
        )
    kept, held_out, _ = _dealt(train, labels, (validation, 0), settings.seed, client)
    return ClientData(kept, held_out, test)


def _dealt(owned: Array, labels: Array, sizes: tuple[int, int], seed: int, client: int) -> list[Indices]:
    """Samples for training, validation and testing, so many for the latter two, each with the mix of classes of all."""
    validation, test = sizes
    rng = stream(seed, "split", client)
    _, own_labels, have = np.unique(labels[owned], return_inverse=True, return_counts=True)
    tested = apportion(np.array([test]), have[None], rng)[0]
    validated = apportion(np.array([validation]), (have - tested)[None], rng)[0]
    counts = np.stack([have - tested - validated, validated, tested])
    return [owned[places] for places in deal(own_labels, counts, rng)]


def label_counts(parts: Sequence[Array], labels: Array, classes: int) -> Indices:
    """How many samples of each class each part has: clients × classes."""
    counts = [np.bincount(labels[part], minlength=classes) for part in parts]
    return np.array(counts, np.int64).reshape(len(parts), classes)
