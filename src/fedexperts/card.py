"""The card of an exported model: what it takes and gives, how good it is, what is in it, how it was made."""

import json
from collections.abc import Mapping, Sequence

from fedexperts.data import Form
from fedexperts.engine import ClientModel
from fedexperts.measure import Kind
from fedexperts.models import MODELS, place_of
from fedexperts.models.own import is_place

TENSORS, ABOUT = "model.safetensors", "model.json"


def card(
    model: ClientModel,
    tested: Mapping[Kind, float],
    environment: Mapping[str, str],
    programs: Mapping[str, str],
    as_own: Sequence[str],
) -> str:
    """`programs`: file name → "" if it is there, else why not; `as_own`: what was received and is in the model."""
    method, client, form = model.method, model.client, model.form
    parts = [f"| {part} | {owner} |" for part, owner in method.owners.items()]
    accuracy = [f"| {kind} | {100 * value:.2f} % |" for kind, value in tested.items()]
    there = [
        f"- `{name}`: {why or 'a whole program, from the samples to the probabilities'}"
        for name, why in programs.items()
    ]
    last = "the model in this folder"
    if model.settled:
        last = (
            "the model as it was trained last, for which this client's validation data did not speak (or there were "
            "none to compare): this folder has the one that it falls back on, whose accuracy is not in the table"
        )
    return "\n".join(
        [
            f"# {client.called.capitalize()}'s model, trained with {method.title}",
            "",
            f"{method.source}. Client {client.name or client.id} was one of {client.clients}; it trained on "
            f"{client.samples} samples of its own. Its model: `{place_of(client.model)}`.",
            "",
            "## What it takes and gives",
            "",
            f"- Samples: {_takes(form)}",
            f"- Probabilities of {len(model.class_names)} classes, in this order: {', '.join(model.class_names)}.",
            "",
            "```python",
            "import fedexperts",
            "",
            f"model = fedexperts.load_exported({_call(model)})  # this folder",
            "probabilities = model.predict(samples)  # samples × classes",
            "```",
            "",
            "On the command line: `fedexperts predict FOLDER FILE`.",
            "",
            "## How good it is",
            "",
            f"On the client's own test data. *last* is {last}; *selected* the round that was best on "
            "validation data; *peak* the best test score of all rounds, which is not to be claimed.",
            "",
            "| round | accuracy |",
            "|---|---|",
            *accuracy,
            "",
            "It was tested on data like the client's own. Nothing is known of how it does elsewhere.",
            "",
            "## What is in it",
            "",
            f"`{TENSORS}` has everything that a prediction needs, `{ABOUT}` how it is put together.",
            "",
            "| part | owner |",
            "|---|---|",
            *parts,
            "",
            "A part that is private, or a client's own copy, was trained on this client's data alone, and tells of "
            "them: whoever has this folder can ask it. Handle it as you would the data."
            + " It also holds what the server sent for predictions." * (len(as_own) < len(model.received)),
            "",
            *there,
            "",
            "## How it was made",
            "",
            *(f"- {name}: {value}" for name, value in environment.items()),
            f"- {method.name}: `{json.dumps(method.in_use())}`",
            f"- training: `{json.dumps(method.train.model_dump(mode='json'))}`",
            "",
        ]
    )  # fmt: skip


def _call(model: ClientModel) -> str:
    """What `load_exported` must be given: models whose code it cannot find by itself too."""
    refs = {"model": model.client.model, "common_model": model.client.common}
    return ", ".join(['"."', *(f"{name}=…" for name, ref in refs.items() if ref and not can_find(place_of(ref)))])


def can_find(name: str) -> bool:
    """Whether a model of that name can be built without being given."""
    return name.partition("/")[0] in MODELS or is_place(name)


def _takes(form: Form) -> str:
    if form.vocabulary is not None:
        return f"plain texts; their first {form.shape[0]} words count, {len(form.vocabulary.words):,} words are known."
    sizes = " × ".join(map(str, ("samples", *form.shape)))
    if form.kind == "image":
        return f"images as bytes (uint8), {sizes}: channels, height, width."
    names = f": {', '.join(form.columns)}" if form.columns else ""
    return f"numbers (float32), {sizes}, as in training{names}."
