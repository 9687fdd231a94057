"""A client's model in a folder of its own: tensors, what is needed to build it again, a card, and plain programs."""

import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from fedexperts.card import ABOUT, TENSORS, can_find, card
from fedexperts.config import TrainSettings
from fedexperts.data import Form, Scale, Vocabulary
from fedexperts.engine import ClientModel
from fedexperts.errors import ModelError, SavedStateError
from fedexperts.files import write_atomically
from fedexperts.measure import Kind
from fedexperts.methods import State, method_class, pack
from fedexperts.models import ModelRef, ModelSource, model_ref, own_model, place_of
from fedexperts.task import ClientSpec

FORMAT = 1
WORDS, CARD = "words.txt", "README.md"
PROGRAM, ONNX = "model.pt2", "model.onnx"


def save_model(model: ClientModel, folder: Path, tested: Mapping[Kind, float], environment: Mapping[str, str]) -> Path:
    """Write a model into a new folder; `tested` are the client's accuracies, for its card."""
    check_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": tensor for name, tensor in model.tensors.items()}
    tensors |= {f"received.{name}": tensor for name, tensor in model.received.items() if name not in _twice(model)}
    (folder / TENSORS).write_bytes(pack(tensors))
    if model.form.vocabulary is not None:
        write_atomically(folder / WORDS, "\n".join(model.form.vocabulary.words))
    programs = _programs(model, folder)
    write_atomically(folder / CARD, card(model, tested, environment, programs, _twice(model)))
    write_atomically(folder / ABOUT, json.dumps(_about(model), indent=1, ensure_ascii=False))  # last: it is whole now
    return folder


def check_new(folder: Path) -> None:
    """That a model can be written there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SavedStateError(f"{folder} exists and is not an empty folder; choose another")


def _about(model: ClientModel) -> dict[str, Any]:
    client, form = model.client, model.form
    return {
        "format": FORMAT,
        "method": model.method.name,
        "options": model.method.in_use(),
        "train": model.method.train.model_dump(mode="json"),
        "client": {
            "id": client.id,
            "name": client.name,
            "model": str(client.model),
            "common": client.common and str(client.common),
            "shape": client.shape,
            "samples": client.samples,
            "label_counts": client.label_counts,
            "clients": client.clients,
        },
        "place": place_of(client.model),
        "form": {"kind": form.kind, "shape": form.shape, "columns": form.columns},
        "scale": form.scale and {"mean": form.scale.mean, "spread": form.scale.spread},
        "class_names": model.class_names,
        "received_as_own": _twice(model),
        "precision": model.precision,
    }


def _twice(model: ClientModel) -> list[str]:
    """What was received and is part of the model as it came: it is written once."""
    own = model.tensors
    return [name for name, tensor in model.received.items() if name in own and torch.equal(own[name], tensor)]


def is_exported(folder: Path) -> bool:
    return (folder / ABOUT).is_file()


def load_exported(
    folder: str | Path,
    model: ModelSource | None = None,
    common_model: ModelSource | None = None,
    head: str | None = None,
) -> ClientModel:
    """An exported model, which predicts as it did in its run.

    A module that was given to its client in Python cannot be built from a file: give such a one again, or its function
    (`model`, `head`, and `common_model` where clients shared one of their own).
    """
    folder = Path(folder)
    if not is_exported(folder):
        raise SavedStateError(f"{folder} holds no exported model: it has no {ABOUT}; make one with: fedexperts export")
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise SavedStateError(f"{folder} has the format {about['format']}, this version reads format {FORMAT}")
        client, form = about["client"], about["form"]
        words = None
        if form["kind"] == "words":
            words = Vocabulary(tuple((folder / WORDS).read_text(encoding="utf-8").split("\n")))
        scale = about["scale"] and Scale(tuple(about["scale"]["mean"]), tuple(about["scale"]["spread"]))
        found = safetensors.torch.load_file(folder / TENSORS)
        spec = ClientSpec(
            **client
            | {
                "shape": tuple(client["shape"]),
                "label_counts": tuple(client["label_counts"]),
                "classes": len(about["class_names"]),
                "model": _again(client["model"], model, head, "model", folder, about.get("place")),
                "common": client["common"] and _again(client["common"], common_model, None, "common_model", folder),
            }
        )
        method = method_class(about["method"])(TrainSettings.check(about["train"]), about["options"])
        tensors = _under("model.", found)
        return ClientModel(
            method,
            spec,
            Form(form["kind"], tuple(form["shape"]), words, tuple(form["columns"]), scale),
            tuple(about["class_names"]),
            tensors,
            _under("received.", found) | {name: tensors[name] for name in about["received_as_own"]},
            about["precision"],
        )
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise SavedStateError(f"the model in {folder} is cut off or changed ({error}); export it again") from None


def _under(prefix: str, tensors: State) -> State:
    """Copies: where a tensor begins in memory may change the last digit of a sum."""
    return {name.removeprefix(prefix): t.clone() for name, t in sorted(tensors.items()) if name.startswith(prefix)}


def _again(
    name: str, given: ModelSource | None, head: str | None, option: str, folder: Path, place: str | None = None
) -> ModelRef:
    """The model of that name, or the one that is given for it; `place`: what it is found by, if not by its name."""
    place = place or name
    if given is None and not can_find(place):
        raise ModelError(
            f"'{place}' was given in Python; give it again: load_exported('{folder}', {option}=…). Without its code, "
            f"{PROGRAM} is a whole program: torch.export.load('{folder / PROGRAM}').module()"
        )
    found = model_ref(place) if given is None else model_ref(given, head)
    own = own_model(found)
    return found if own is None or str(found) == name else replace(own, name=name, place=place)  # tensors may have it


# --- programs that need nothing of ours


def _programs(model: ClientModel, folder: Path) -> dict[str, str]:
    """Write the model as programs where that can be done: file name → "" if it is there, else why not."""
    sample = torch.from_numpy(model.form.take(_samples(model.form)))
    found: dict[str, str] = {}
    with _quiet():
        try:
            program = _program(model.module(), sample)
            torch.export.save(program, folder / PROGRAM)
            found[PROGRAM] = ""
        except Exception as error:  # a model may do anything that a program cannot
            return {PROGRAM: _first_line(error), ONNX: _first_line(error)}
        if find_spec("onnx") is None or find_spec("onnxscript") is None:
            return found | {ONNX: "it needs the extra 'onnx': pip install 'fedexperts[onnx]'"}
        try:
            torch.onnx.export(
                program, f=str(folder / ONNX), verbose=False, custom_translation_table=_more_translations()
            )
            return found | {ONNX: ""}
        except Exception as error:
            (folder / ONNX).unlink(missing_ok=True)
            return found | {ONNX: _first_line(error)}


def _more_translations() -> dict[Any, Any]:
    """What torch cannot say in ONNX by itself: a sort in which equals keep their order. ONNX's TopK is one."""
    from onnxscript import opset18

    op: Any = opset18  # its types do not know that a shape is of whole numbers

    def stable_sort(values: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
        everything = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
        return op.TopK(values, everything, axis=dim, largest=descending, sorted=True)

    return {torch.ops.aten.sort.stable: stable_sort}


def _samples(form: Form) -> Any:
    """A few samples without content."""
    if form.vocabulary is not None:
        return [""] * 3
    return torch.zeros(3, *form.shape, dtype=torch.uint8 if form.kind == "image" else torch.float32)


def _program(module: nn.Module, sample: torch.Tensor) -> torch.export.ExportedProgram:
    """For any number of samples; checked against the model itself."""
    samples = torch.export.Dim("samples", min=1)
    program = torch.export.export(module, (sample,), dynamic_shapes=({0: samples},))
    for few in (sample, sample[:1]):
        torch.testing.assert_close(program.module()(few), module(few))
    return program


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch has to say of its own affairs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _first_line(error: Exception) -> str:
    said = re.split(r"[.!\n\x1b]", str(error).strip())[0]
    return f"it cannot be made ({type(error).__name__}: {said:.150})"
