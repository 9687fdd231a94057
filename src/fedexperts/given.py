"""What a user says of a task, completed by what follows from the data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedexperts.config import TaskSettings
from fedexperts.data import Dataset, clients_in, is_folder, is_text, read_client
from fedexperts.errors import DataError, SettingsError
from fedexperts.models import TEXT_MODELS, smallest


def with_model(values: Mapping[str, Any], dataset: Dataset | None = None) -> dict[str, Any]:
    """Settings by name, with what follows from the data: a model for texts, where they name none and the data, or their

    name, say that it is texts; of a folder of clients, how many there are and a model for such samples. Settings have a
    model for images by themselves.
    """
    name = values.get("data")
    if values.get("partition") == "own" and not is_folder(str(name)):  # clients that are given in Python
        return dict(values)
    if dataset is None and isinstance(name, str):
        place = TaskSettings.check({key: values[key] for key in ("data", "data_dir") if key in values})
        if is_folder(place.data):
            return _of_folder(values, place)
    of_texts = dataset.kind == "text" if dataset else isinstance(name, str) and is_text(name)
    return {**values, "model": next(iter(TEXT_MODELS))} if of_texts and "model" not in values else dict(values)


NOT_SPLIT = (
    *("partition", "classes_per_client", "balanced", "alpha", "shared_ratio", "samples_per_client", "samples"),
    *("test_fraction", "drift", "phases", "download"),
)
"""Settings that say how a set is split over clients."""


def _of_folder(values: Mapping[str, Any], place: TaskSettings) -> dict[str, Any]:
    """Each client has its own data already: what would split a set is an error, unless it says nothing."""
    fields, own = TaskSettings.model_fields, values.get("partition") == "own"
    for name in NOT_SPLIT:
        if name in values and not (own and (name == "partition" or values[name] == fields[name].default)):
            raise SettingsError(f"{name}: the clients in {values['data']} have their own data, nothing is split")
    folder = Path(place.data_dir or "", place.data)
    found = clients_in(folder)
    if int(values.get("clients", len(found))) != len(found):
        raise SettingsError(f"{folder} holds {len(found)} clients, not {values['clients']}; leave out --clients")
    values = {**values, "clients": len(found), "partition": "own"}
    if "model" in values:
        return values
    try:
        inputs = read_client(found[0], values.get("image_size"))[0].inputs
    except DataError:  # what is wrong is said when all are read
        return values
    return {**values, "model": next(iter(TEXT_MODELS)) if inputs.dtype.kind == "U" else smallest(inputs.shape[1:])}
