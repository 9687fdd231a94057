"""A client with data and a model of its own, and several of them as one data set."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedexperts.config import TaskSettings
from fedexperts.data import (
    ClientData,
    Dataset,
    Samples,
    classes_of,
    in_order,
    numbered,
    read_client,
    split_own,
)  # fmt: skip
from fedexperts.errors import DataError, SettingsError
from fedexperts.models import (
    ModelRef,
    ModelSource,
    Shape,
    blank,
    check_model,
    check_own,
    model_ref,
    own_model,
    smallest,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Client:
    """Somebody's data and model.

    `train` and `test`: (inputs, labels) as arrays, tensors or lists, or a torch Dataset. Inputs are texts; images as
    bytes (samples × channels × height × width, or the channels last), which models get in [-1, 1]; or numbers, which
    models get as they are: a table's rows, or images that are scaled already. Labels are numbers from 0, or names.

    `model`: the name of one of ours, "package.module:function", a module (every copy begins with its weights), or a
    function (shape, classes) → module; by itself a small one of ours. A module has parts `extractor` and `head`, or
    `head` names its last layer, a Linear.
    """

    name: str
    train: Any
    test: Any
    model: ModelSource | None = None
    head: str | None = None

    @classmethod
    def read(cls, folder: Path, model: ModelSource | None = None, image_size: int | None = None) -> "Client":
        """From its folder, whose name it has."""
        return cls(folder.name, *read_client(folder, image_size), model)

    @property
    def samples(self) -> tuple[Samples, Samples]:
        """What it trains on and what it is tested on."""
        return Samples.of(self.train, f"client {self.name}, train"), Samples.of(self.test, f"client {self.name}, test")

    def model_for(self, shape: Shape, classes: int) -> ModelRef:
        """Its model, if that fits the samples; else an error that names the client."""
        try:
            model = model_ref(self.model, self.head) if self.model is not None else smallest(shape)
            check(model, shape, classes, f"client {self.name}")
        except SettingsError as error:
            raise SettingsError(f"client {self.name}: {error}") from None
        return model


def check(model: ModelRef, shape: Shape, classes: int, who: str) -> None:
    """An error that names whose it is, where a model does not fit samples of this shape."""
    own = own_model(model)
    if own is None:
        check_model(str(model), shape)
    else:
        check_own(own, shape, classes, blank(shape).expand(2, *blank(shape).shape[1:]), who)


class Together(NamedTuple):
    """The data of several clients as one set, and who has which of it."""

    dataset: Dataset
    clients: tuple[ClientData, ...]


def together(
    clients: Sequence[Client],
    settings: TaskSettings,
    class_names: Sequence[str] | None = None,
    like: Dataset | None = None,
    first: int = 0,
) -> Together:
    """All clients' samples one after another. With `like`, as that set has its own: its classes, its words.

    `first`: the number of the first client, if these are not all that there are.
    """
    if twice := [c.name for i, c in enumerate(clients) if c.name in {other.name for other in clients[:i]}]:
        raise DataError(f"two clients are called '{twice[0]}'; a name belongs to one")
    every = [samples for client in clients for samples in client.samples]
    columns = like.columns if like else every[0].columns
    names = classes_of(every, like.class_names if like else class_names)
    labels = np.concatenate([numbered(samples, names) for samples in every])
    ordered = [in_order(one.inputs, one.columns, columns, one.where) for one in every]
    inputs = _alike(ordered, every, like is not None and like.kind == "image" and like.shape[0] == 3)
    ends = np.cumsum([len(samples.inputs) for samples in every])
    places = np.split(np.arange(ends[-1]), ends[:-1])
    owned = tuple(
        split_own(train, test, labels, settings, first + k, clients[k].name)
        for k, (train, test) in enumerate(zip(places[::2], places[1::2], strict=True))
    )
    if like is not None:
        try:
            inputs = like.form.take(inputs)
        except DataError as error:
            raise DataError(
                f"client {clients[0].name} has other samples than the run; its clients have {error}"
            ) from None
        return Together(replace(like, inputs=inputs, labels=labels), owned)
    note = f"from {settings.data_dir}/{settings.data}" if settings.data_dir else "each client brought its own"
    dataset = Dataset(settings.data.rstrip("/"), inputs, labels, names, note, None, columns)
    if dataset.kind == "text":
        training = np.concatenate([client.train for client in owned])
        dataset = dataset.in_words(training, settings.vocabulary, settings.text_length)
    if dataset.kind == "values" and len(dataset.shape) == 1:
        dataset = dataset.on_one_scale([client.train for client in owned])
    return Together(dataset, owned)


def _alike(inputs: Sequence[np.ndarray], every: Sequence[Samples], coloured: bool = False) -> np.ndarray:
    """All samples in one array; grey images among coloured ones become coloured."""
    coloured = coloured or any(one.dtype == np.uint8 and one.shape[1:2] == (3,) for one in inputs)
    if coloured:
        inputs = [np.repeat(one, 3, axis=1) if one.shape[1:2] == (1,) else one for one in inputs]
    first = inputs[0]
    for one, samples in zip(inputs, every, strict=True):
        if (one.dtype.kind, one.shape[1:]) != (first.dtype.kind, first.shape[1:]):
            help_ = "; --image-size makes pictures one size" * (one.dtype == first.dtype == np.uint8)
            raise DataError(
                f"{samples.where} has samples of {_said(one)}, {every[0].where} of {_said(first)}; all clients' "
                f"samples must be alike{help_}"
            )
    return np.ascontiguousarray(np.concatenate(inputs))


def _said(inputs: np.ndarray) -> str:
    if inputs.dtype.kind == "U":
        return "text"
    return f"shape {tuple(inputs.shape[1:])} ({'bytes' if inputs.dtype == np.uint8 else 'numbers'})"
