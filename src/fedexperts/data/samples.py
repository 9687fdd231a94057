"""Samples of the user's own with their labels, from whatever holds them, and the classes of all clients together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedexperts.data.form import as_inputs, plain
from fedexperts.data.parts import Array, Indices, check_labels
from fedexperts.errors import DataError, suggestion


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as a set has them, and one label each."""

    where: str
    """For errors: "client north, train"."""
    inputs: Array
    labels: Array
    """Numbers of classes from 0, or their names."""
    classes: tuple[str, ...] = ()
    """All that there are, where the source says: the names of the folders of pictures."""
    columns: tuple[str, ...] = ()
    """The names of a table's features."""

    @classmethod
    def of(cls, source: Any, where: str) -> "Samples":
        """From (inputs, labels), or from anything with a length whose items are (input, label): a torch Dataset."""
        if isinstance(source, Samples):
            return replace(source, where=where)
        if isinstance(source, tuple) and len(source) == 2:
            inputs, labels = source
        elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
            inputs, labels = _items(source, where)
        else:
            raise DataError(f"{where}: give (inputs, labels) or a torch Dataset with a length, not {_called(source)}")
        try:
            inputs = as_inputs(inputs)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        labels = plain(labels)
        if labels.dtype.kind not in "iuU" or labels.ndim != 1:
            raise DataError(
                f"{where}: labels are {labels.dtype} of shape {labels.shape}; give one class for each sample, as a "
                "whole number from 0 or as a name"
            )
        if len(labels) != len(inputs):
            raise DataError(f"{where}: {len(inputs):,} samples but {len(labels):,} labels")
        return cls(where, inputs, labels)

    @property
    def names(self) -> bool:
        """Whether the labels are names of classes."""
        return self.labels.dtype.kind == "U"


def _items(source: Any, where: str) -> tuple[Any, Any]:
    try:
        items = [source[i] for i in range(len(source))]
        if any(isinstance(item, Mapping) for item in items[:1]):
            raise DataError(f"{where}: the items of {_called(source)} have names ({', '.join(items[0])}); give pairs")
        inputs, labels = zip(*items, strict=True)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: the items of {_called(source)} are not (input, label): {error}") from None
    if isinstance(inputs[0], str):
        return list(inputs), [plain(label).item() for label in labels]
    arrays = [plain(one) for one in inputs]
    if len(shapes := sorted({one.shape for one in arrays})) > 1:
        raise DataError(f"{where}: samples have different shapes, such as {shapes[0]} and {shapes[-1]}; all need one")
    return np.stack(arrays), [plain(label).item() for label in labels]


def _called(source: Any) -> str:
    return f"{'an' if type(source).__name__[0] in 'AEIOUaeiou' else 'a'} {type(source).__name__}"


def class_order(label: str) -> tuple[bool, int, str]:
    """Numbers by their value, before words."""
    return (False, int(label), "") if label.isdecimal() else (True, 0, label)


def classes_of(every: Sequence[Samples], class_names: Sequence[str] | None = None) -> tuple[str, ...]:
    """The classes of all together: those given, those that folders name, or all that occur."""
    if class_names is not None:
        return tuple(class_names)
    first = every[0]
    for one in every:
        if one.names != first.names:
            kinds = ["names" if samples.names else "numbers" for samples in (first, one)]
            raise DataError(f"{first.where} has {kinds[0]} for labels, {one.where} {kinds[1]}; give all the same kind")
    if any(one.classes for one in every):
        return _same_classes(every)
    names = occurring(every)
    if len(names) < 2:
        raise DataError(f"there is one class ('{names[0]}') only; at least two are needed")
    return names


def occurring(every: Sequence[Samples]) -> tuple[str, ...]:
    """The classes that some samples are of, in order; where they are numbers, all up to the largest."""
    if every[0].names:
        return tuple(sorted({name for one in every for name in set(one.labels.tolist())}, key=class_order))
    return tuple(map(str, range(1 + max(int(one.labels.max(initial=0)) for one in every))))


def _same_classes(every: Iterable[Samples]) -> tuple[str, ...]:
    """Names of classes that the source itself brings must be the same everywhere: a misspelt one would be a new one."""
    first, *others = every
    for one in others:
        for here, there in ((first, one), (one, first)):
            if missing := sorted(set(here.classes) - set(there.classes)):
                hint = suggestion(missing[0], set(there.classes) - set(here.classes))
                raise DataError(
                    f"{there.where} has no class '{missing[0]}', which {here.where} has{hint or '; '}"
                    f"{' ' if hint else ''}all clients need the same classes: where a class has no samples, make an "
                    "empty folder of that name"
                )
    return tuple(sorted(first.classes, key=class_order))


def numbered(samples: Samples, class_names: Sequence[str]) -> Indices:
    """The labels as numbers of these classes."""
    if not samples.names:
        check_labels(samples.where, samples.labels, len(samples.inputs), len(class_names))
        return samples.labels.astype(np.int64)
    number = {name: i for i, name in enumerate(class_names)}
    if unknown := sorted(set(samples.labels.tolist()) - number.keys()):
        raise DataError(
            f"{samples.where} has the label '{unknown[0]}', which is no class{suggestion(unknown[0], number)}; "
            f"the classes are: {', '.join(class_names)}"
        )
    return np.array([number[name] for name in samples.labels.tolist()], np.int64)
