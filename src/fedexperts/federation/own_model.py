"""A site's own model: its code is the operator's alone, and others know what of it a method shares."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedexperts.client import check
from fedexperts.engine.member import model_of
from fedexperts.errors import FederationError, ModelError
from fedexperts.federation.envelope import OWN_MODEL, Plan, PublicSpec
from fedexperts.methods import Method, Owner, part_of
from fedexperts.models import (
    Extractor,
    ModelRef,
    Outline,
    OwnModel,
    Parts,
    Shape,
    Stem,
    build,
    cut,
    is_place,
    out_shape,
    own_model,
)
from fedexperts.task import ClientSpec


def said(model: ModelRef | None) -> str:
    """What a site says of the model that its operator chose: the name of one of ours, or that it is its own."""
    if model is None:
        return ""
    return model if isinstance(model, str) and not is_place(model) else OWN_MODEL


def refuse_code(plan: Plan, first: Sequence[PublicSpec]) -> None:
    """Nothing in a plan may be the place of some code: a site imports what its operator names, and no more."""
    planned = [plan.settings.get(name) for name in ("model", "common_model", "options")]
    for name in _words([*planned, *([client.model, client.common] for client in (plan.client, *first))]):
        if is_place(name):
            raise FederationError(f"'{name[:100]}' in the plan: a server may not name code for a site to run")


def _words(value: Any) -> Iterator[str]:
    """All that is text in plain values, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _words([key, one])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _words(one)


def planned(plan: Plan, chosen: ModelRef | None) -> ModelRef:
    """The model that a client runs in a plan: the one that the site's operator chose, if there is one."""
    name = plan.client.model
    if chosen is not None and name != said(chosen):
        raise FederationError(f"run {plan.run} is planned with model {name}, and this site runs {said(chosen)}")
    model = name if chosen is None else chosen
    check(model, plan.client.shape, plan.client.classes, "this site")
    own = own_model(model)
    # A method may name tensors by it, as FedEMoE does.
    return model if own is None else replace(own, name=OWN_MODEL, place=own.name)


def elsewhere(shape: Shape, classes: int) -> Parts:
    """In place of a model whose code another site has."""
    raise FederationError("this needs the code of another site's own model")


def outline_of(method: Method, client: ClientSpec) -> Outline:
    """What must be known of a client's model elsewhere: its extractor only where the method shares something of it."""
    with torch.random.fork_rng(devices=[]):
        parts = build(client.model, client.shape, client.classes)
        least = Outline.of(parts, whole=False)
        unknown = replace(client, model=OwnModel(OWN_MODEL, least))
        try:
            enough = _shared(method, client) == _shared(method, unknown)
            stem = None
        except ModelError:  # the method cuts the extractor in two
            enough, stem = False, _stem(client, parts)
    return least if enough else Outline.of(parts, whole=True, stem=stem)


def _stem(client: ClientSpec, parts: Parts) -> Stem:
    embedding, _ = cut(client.model, client.shape, client.classes)
    shape, wrapped = out_shape(embedding, client.shape), isinstance(parts["extractor"], Extractor)
    return Stem(tensors=len(embedding.state_dict()), shape=shape, place="net" if wrapped else "")


def _shared(method: Method, client: ClientSpec) -> dict[str, tuple[int, ...]]:
    """The tensors that others may see, and their shapes."""
    with torch.device("meta"):
        state = model_of(method, client, torch.float32).state_dict()
    visible = method.owned(Owner.SHARED, Owner.PEER)
    return {name: tuple(tensor.shape) for name, tensor in state.items() if part_of(name) in visible}
