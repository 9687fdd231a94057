"""Who has which samples: a data set divided over clients, reproducible from the seed.

Every kind but the homogeneous is a matrix of shares that comes from one formula: a part `even` of each line
is spread evenly, the rest follows Dirichlet(alpha). A line is a class divided over its clients or, where each
client has a fixed number of samples, a client divided over its classes.
"""

import numpy as np

from fedexperts.config import TaskSettings
from fedexperts.data.counts import Weights, apportion, deal, dirichlet
from fedexperts.data.parts import Array, Indices, check_labels
from fedexperts.errors import DataError
from fedexperts.randomness import stream

MIN_SAMPLES = 10
"""Every client must be able to train, choose a round, and test."""
ATTEMPTS = 1000
_CLASSES, _SHARES, _SAMPLES = range(3)  # the streams of one partition


def partition(labels: Array, classes: int, settings: TaskSettings) -> list[Indices]:
    """The sorted positions of each client's samples. No sample belongs to two clients.

    Without `samples_per_client` the kinds use every sample, except a pathological split with fewer places
    (clients × classes_per_client) than classes: it leaves out the classes that nobody has.
    """
    check_labels("the partition", labels, len(labels), classes)
    _check_size(len(labels), settings)
    rng = stream(settings.seed, "partition", _SAMPLES)
    if settings.partition == "homogeneous":
        return deal(np.zeros(len(labels), np.int64), _equal_sizes(len(labels), settings)[:, None], rng)
    return deal(labels, _counts(np.bincount(labels, minlength=classes), settings), rng)


def _check_size(samples: int, settings: TaskSettings) -> None:
    fixed = settings.samples_per_client
    if fixed is not None and fixed < MIN_SAMPLES:
        raise DataError(f"samples_per_client is {fixed}; a client needs at least {MIN_SAMPLES}")
    if settings.clients * (fixed or MIN_SAMPLES) > samples:
        needed = f"{fixed} samples each" if fixed else f"at least {MIN_SAMPLES} samples each"
        raise DataError(
            f"{settings.clients:,} clients with {needed} need {settings.clients * (fixed or MIN_SAMPLES):,}, "
            f"the set has {samples:,}; use fewer clients" + (" or samples_per_client" if fixed else "")
        )


def _equal_sizes(samples: int, settings: TaskSettings) -> Indices:
    if settings.samples_per_client:
        return np.full(settings.clients, settings.samples_per_client)
    return samples // settings.clients + (np.arange(settings.clients) < samples % settings.clients)


def _counts(available: Indices, settings: TaskSettings) -> Indices:
    """Samples of each class for each client; uneven draws are repeated until every client has enough."""
    held = _held_classes(available, settings)
    # Whoever holds a class by assignment has at least one sample of it, however uneven the draw
    sure = held.astype(np.int64) * (settings.partition == "pathological")
    even = {
        "pathological": float(settings.balanced),
        "dirichlet": 0.0,
        "dirichlet-shared": settings.shared_ratio,
    }[settings.partition]
    enough = settings.samples_per_client or MIN_SAMPLES
    best = np.full(settings.clients, -1)
    for attempt in range(1 if even == 1 else ATTEMPTS):
        rng = stream(settings.seed, "partition", _SHARES, attempt)
        if settings.samples_per_client:
            shares = _shares(held, even, settings.alpha, rng)
            counts = _fixed_counts(available, held, sure, shares, settings.samples_per_client, rng)
        else:
            shares = _shares(held.T, even, settings.alpha, rng)
            used = np.where(held.any(0), available, 0)
            counts = sure + apportion(used - sure.sum(0), shares, rng).T
        sizes = counts.sum(1)
        if sizes.min() >= enough:
            return counts
        best = max(best, sizes, key=np.min)
    raise DataError(_too_few(best, enough, even, settings))


def _held_classes(available: Indices, settings: TaskSettings) -> Array:
    """Which client may have which class. Pathological: so many each, every class equally often."""
    exist = np.flatnonzero(available)
    held = np.zeros((settings.clients, len(available)), bool)
    if settings.partition != "pathological":
        held[:, exist] = True
        return held
    each = settings.classes_per_client
    if each > len(exist):
        raise DataError(f"classes_per_client is {each}, but there are samples of only {len(exist)} classes")
    if settings.samples_per_client and settings.samples_per_client < each:
        raise DataError(f"{settings.samples_per_client} samples per client cannot cover {each} classes")
    rng = stream(settings.seed, "partition", _CLASSES)
    holders = np.zeros(len(exist), np.int64)
    for client in range(settings.clients):
        rarest = np.lexsort((rng.random(len(exist)), holders))[:each]
        held[client, exist[rarest]] = True
        holders[rarest] += 1
    if (scarce := np.flatnonzero(held.sum(0) > available)).size:
        label = int(scarce[0])
        raise DataError(
            f"class {label} has {available[label]} samples for its {held[:, label].sum()} clients; "
            "use fewer clients or a smaller classes_per_client"
        )
    return held


def _shares(mask: Array, even: float, alpha: float, rng: np.random.Generator) -> Weights:
    """Rows that sum to 1 over the mask: `even` of it equally, the rest by Dirichlet(alpha)."""
    equal = mask / np.maximum(mask.sum(1, keepdims=True), 1)
    return np.asarray(equal if even == 1 else even * equal + (1 - even) * dirichlet(mask, alpha, rng))


def _fixed_counts(
    available: Indices, held: Array, sure: Indices, shares: Weights, each: int, rng: np.random.Generator
) -> Indices:
    """`each` samples per client in its own shares, as far as the classes last."""
    counts = sure + apportion(each - sure.sum(1), shares, rng)
    # A class that is asked for more than it has is divided in proportion to what was asked
    over = counts.sum(0) > available
    counts[:, over] = (sure + apportion(available - sure.sum(0), (counts - sure).T, rng).T)[:, over]
    left = available - counts.sum(0)
    # Who lost by that takes the next of its own classes that has some left, largest share first
    for client in np.flatnonzero(counts.sum(1) < each):
        for label in np.lexsort((-left, -shares[client])):
            if held[client, label]:
                more = min(each - counts[client].sum(), left[label])
                counts[client, label] += more
                left[label] -= more
    return counts


def _too_few(sizes: Indices, enough: int, even: float, settings: TaskSettings) -> str:
    client = int(sizes.argmin())
    draws, help_ = "", ["fewer clients"]
    if even < 1:
        draws = f" even in the best of {ATTEMPTS:,} draws of Dirichlet(alpha={settings.alpha:g})"
        help_.append("a larger alpha")
    if settings.samples_per_client:
        help_.append("a smaller samples_per_client")
    if settings.partition == "pathological":
        help_.append("more classes_per_client")
    return (
        f"client {client} of {settings.clients} would have {sizes[client]} samples{draws}, "
        f"it needs {enough}; {' or '.join(help_)} would help"
    )
