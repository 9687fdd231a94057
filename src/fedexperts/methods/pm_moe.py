"""PM-MoE: everyone's personal modules in one pool, and on every client a gate that mixes them for its own samples."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedexperts.config import ClientNumbers, Frozen, Settings, TaskSettings, TrainSettings, absolute
from fedexperts.errors import MethodError, SettingsError
from fedexperts.methods.base import Batch, Beginning, Method, Model, Reply, Round, Stage, Trained
from fedexperts.methods.message import Message, Owner, State, inside, select
from fedexperts.models import DeepGate, GateActivation, GateStart, Parts, blank, strongest
from fedexperts.task import ClientSpec

_PRESENT = "present.modules"
TINY = 1e-12


class PoolGate(nn.Module):
    """G^j: the M modules' scores, and what the client knows: its own place, whether the gate has learned."""

    def __init__(self, scores: DeepGate, client: ClientSpec) -> None:
        super().__init__()
        self.scores = scores
        self.register_buffer("own", torch.arange(client.clients) == client.id)
        self.register_buffer("learned", torch.tensor(False))


class Answers(NamedTuple):
    """What the pool says of some samples."""

    each: Tensor  # M × samples × width: h^k
    confidence: Tensor  # M × samples: H^k
    removed: Tensor  # M × samples: taken for noise
    weights: Tensor  # M × samples: α^k of those that count, else 0


class Swapped:
    """A model one of whose parts is a function instead."""

    def __init__(self, model: Model, part: str, function: Callable[[Tensor], Tensor]) -> None:
        self._model, self._part, self._function = model, part, function

    def __getattr__(self, name: str) -> Any:
        return self._function if name == self._part else getattr(self._model, name)


class PMMoE(Method):
    """The second phase, over a finished run of any method that names its personal module (`Method.personal`).

    In the first round every client sends its module W^j, and the server makes the pool of them. Then each client trains
    a gate, and nothing else: the module's output is replaced by Σ α^k h^k, h^k what module k makes of the module's own
    input z, α = softmax(G^j(z)) (Eq. 5-9). Parameters that are only added (DBE's) are modules too, whose h^k does not
    depend on z. Before that, a sample's γ of the other clients' modules whose outputs have the least to do with the own
    one are removed: v^k = h^k ⊙ h^j / (‖h^k‖‖h^j‖), confidence H^k = T·log Σ exp(v^k/T) over the dimensions
    (Eq. 10-12). Of the rest the `top` count. As printed, what is left of the weights does not sum to 1.

    The pool is one for all clients: the server sends it once to each. A client in `keep_out` does not send its module,
    uses it all the same, and the others'. Until its gate has learned a client predicts with its own module alone, so
    the first round of the history is the base's accuracy, and the run's figures are of the rounds after it. When the
    run is over, a client uses the mixture only if its validation accuracy is then higher than it was in that round.
    """

    name = "pm-moe"
    title = "PM-MoE"
    source = (
        "Feng et al. 2025: PM-MoE: Mixture of Experts on Private Model Parameters for Personalized Federated Learning, "
        "WWW"
    )
    owners = {"extractor": Owner.PRIVATE, "head": Owner.SHARED, "gate": Owner.PRIVATE}  # with the default base

    class Options(Frozen):
        base: str = Field("fedper", description="method of the first phase: any that names its personal module")
        from_: Path | None = Field(None, description="folder of a finished run of a base, instead of a first phase")
        pretraining: dict[str, Any] = Field(
            {}, description="settings of the first phase; on the command line they are given as its own"
        )
        gate_epochs: int = Field(50, ge=1, description="E_moe: epochs of the gate")
        gate_lr: float = Field(0.1, gt=0, description="η_moe: learning rate of the gate")
        gate_depth: int = Field(4, ge=1, le=4, description="layers of the gate")
        gate_activation: GateActivation = Field("leaky-relu", description="between the gate's layers")
        gate_start: GateStart = Field("orthogonal", description="how the gate's weights begin")
        top: int | None = Field(None, ge=1, description="k: modules that count for a sample (default: all)")
        renormalise: bool = Field(False, description="whether the weights that count sum to 1; as printed they do not")
        denoise: float = Field(0.2, ge=0, lt=1, description="γ: part of the others' modules that is removed as noise")
        energy_temperature: float = Field(1.0, gt=0, description="T of the confidence")
        keep_out: ClientNumbers = Field((), description="clients that do not give their module to the pool")

        _absolute = field_validator("from_")(absolute)

        @model_validator(mode="after")
        def _has_personal_module(self) -> Self:
            _base(self.base)
            if self.top == 1 and self.renormalise:
                raise ValueError("a weight that is alone and sums to 1 leaves the gate nothing to learn; give --top 2")
            return self

    options: Options

    def __init__(self, train: TrainSettings | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(train, options)
        first, own = _parted(self.options.pretraining)
        self.base = _base(self.options.base)(TrainSettings.check(self.train.model_dump() | first), own)
        if "gate" in self.base.owners:
            raise MethodError(f"{self.base.name} has a part 'gate'; pm-moe's own is called so: give it another name")
        private = dict.fromkeys(self.base.owners, Owner.PRIVATE)
        self.owners = private | {self.base.personal: Owner.SHARED, "gate": Owner.PRIVATE}

    # --- two phases

    goes_on_from = "from"
    beforehand = 1

    @classmethod
    def arranged(cls, values: Mapping[str, Any], saved: Callable[[Path], Settings]) -> dict[str, Any]:
        """How to train is said of the first phase; the second trains gates, an epoch in each round after the first."""
        given = {**values.get("options", {}), **values}
        given.pop("options", None)
        if "pretraining" in given:  # as a run saves it
            return given
        if folder := given.get("from_"):
            done = saved(Path(folder))
            if said := sorted(set(given) & (set(TrainSettings.model_fields) - {"batch_size"})):
                raise SettingsError(f"{', '.join(said)}: the first phase is over; --from {folder} says how it was")
            task = done.part(TaskSettings).model_dump(exclude_none=True)
            differing = [name for name, value in task.items() if name in given and not _same(given[name], value)]
            if differing := [name for name in differing if name not in ("data_dir", "download")]:
                raise SettingsError(f"{', '.join(differing)}: not as in {folder}, whose clients go on here")
            if given.get("base", done.method) != done.method:
                raise SettingsError(f"base: {folder} is a run of {done.method}, not of {given['base']}")
            given = task | given | {"base": done.method}
            first = done.part(TrainSettings).model_dump() | done.options
        else:
            theirs = {*TrainSettings.model_fields, *_base(given.get("base", "fedper")).Options.model_fields}
            first = {name: given.pop(name) for name in list(given) if name in theirs - set(cls.Options.model_fields)}
        batch = {"batch_size": size} if (size := given.get("batch_size", first.get("batch_size"))) else {}
        epochs = cls.Options.check({n: given[n] for n in ("gate_epochs",) if n in given}).gate_epochs
        return given | batch | {"pretraining": first, "rounds": cls.beforehand + epochs}

    def begins(self) -> Beginning:
        return Beginning(self.options.base, self.options.pretraining, self.options.from_)

    # --- the model

    def parts(self, client: ClientSpec) -> Parts:
        out = set(self.options.keep_out)
        if unknown := sorted(number for number in out if number >= client.clients):
            raise MethodError(f"--keep-out {unknown[0]}: clients have the numbers 0 to {client.clients - 1}")
        if len(out) == client.clients:
            raise MethodError("pm-moe: no client gives its module to the pool; take some out of --keep-out")
        parts = self.base.parts(client)
        model, widths = Model(parts).eval(), []

        def look(z: Tensor) -> Tensor:
            widths.append(_seen(parts[self.base.personal], z)[0].numel())
            return cast(Tensor, parts[self.base.personal](z))

        with torch.no_grad():
            self.with_module(model, blank(client.shape), look)
        model.train()
        options = self.options
        gate = DeepGate(widths[0], client.clients, options.gate_depth, options.gate_activation, options.gate_start)
        return {**parts, "gate": PoolGate(gate, client)}

    def alike(self) -> set[str]:
        return {self.base.personal} | self.base.alike()

    def _frozen(self, model: Model) -> State:
        """What the base's server sent last, which the client still has."""
        return select(dict([*model.named_parameters(), *model.named_buffers()]), self.base.owned(Owner.SHARED))

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        return self.base.represent(model, x, self._frozen(model))

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        alone = self.base.predict(model, x, self._frozen(model))
        return torch.where(model.gate.learned, self.mixture(model, x, received), alone) if received else alone

    def mixture(self, model: Model, x: Tensor, received: State) -> Tensor:
        """ŷ with the pool in the module's place."""

        def mixed(z: Tensor) -> Tensor:
            answers = self.answers(model, z, received)
            return torch.einsum("mb,mb...->b...", answers.weights, answers.each)

        return self.with_module(model, x, mixed)

    def with_module(self, model: Model, x: Tensor, module: Callable[[Tensor], Tensor]) -> Tensor:
        """The base's prediction with another personal module."""
        return self.base.predict(cast(Model, Swapped(model, self.base.personal, module)), x, self._frozen(model))

    def answers(self, model: Model, z: Tensor, received: State) -> Answers:
        """What all modules of the pool, and the gate, say of the module's input."""
        module, own = getattr(model, self.base.personal), model.gate.own
        pool = inside(received, "pool")
        # One after another: `vmap` over modules, in a stack of clients, would make a copy of the pool for each of them.
        modules = [{name: stack[k] for name, stack in pool.items()} for k in range(len(own))]
        each = torch.stack([functional_call(module, tensors, (z,)) for tensors in modules])
        mine = own.view(-1, *(1,) * (each.ndim - 1))
        each = torch.where(mine, module(z), each)  # a client in `keep_out` is not in the pool
        counted = (received[_PRESENT] | own)[:, None]
        others = counted & ~own[:, None]
        confidence = self._confidence(each, (each * mine).sum(0))
        scores = model.gate.scores(_seen(module, z)).T.masked_fill(~counted, -torch.inf)
        rank = torch.where(others, confidence, torch.inf).argsort(dim=0, stable=True).argsort(dim=0)
        removed = others & (rank < (self.options.denoise * others.sum(0)).floor())
        kept = scores.masked_fill(removed, -torch.inf)
        if self.options.top is not None and self.options.top < len(kept):
            kept = strongest(kept, self.options.top, dim=0, rest=-torch.inf)
        # Renormalised they are a softmax of their own: a sum to divide by can be 0, where the gate is sure of another.
        alpha = kept if self.options.renormalise else scores
        return Answers(each, confidence, removed, alpha.softmax(0).masked_fill(kept == -torch.inf, 0))

    def _confidence(self, each: Tensor, own: Tensor) -> Tensor:
        """H^k of every module and sample (Eq. 12)."""
        each, own = each.flatten(2), own.flatten(1)
        directions = F.normalize(each, dim=2, eps=TINY) * F.normalize(own, dim=1, eps=TINY)
        return self.options.energy_temperature * (directions / self.options.energy_temperature).logsumexp(2)

    # --- training

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        return F.cross_entropy(self.mixture(model, batch.x, received), batch.y)

    def stages(self, now: Round) -> Sequence[Stage]:
        rates = {"gate": self.options.gate_lr}
        return [] if now.number == 1 else [Stage(("gate",), self.loss, self.train.epochs, rates)]

    def finish(self, after: Trained, now: Round) -> State:
        return {"gate.learned": torch.ones_like(after.own["gate.learned"])} if now.number > 1 else {}

    def settled(self, own: State, validation: Mapping[int, float]) -> State:
        """A client uses the mixture only if its validation accuracy shows that it is better than its own module alone.

        Without a figure of round 1 nothing shows it.
        """
        uses = 1 in validation and validation[max(validation)] > validation[1]
        return {} if uses else {"gate.learned": torch.zeros_like(own["gate.learned"])}

    def needs(self, settled: State, received: State) -> State:
        """The pool, if the client mixes it."""
        return received if settled["gate.learned"] else {}

    # --- messages

    @property
    def withheld(self) -> set[str]:
        return {self.base.personal}

    def everyone(self, now: Round) -> bool:
        return now.number == 1

    def kept(self) -> set[str]:
        return set(self.owners)

    def start(self, model: Model) -> State:
        return {}

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        """The pool, once."""
        pool = select(server, {"pool", "present"})
        return Message(known=pool) if f"seen.{client.id}" in server else Message(pool)

    def reply(self, after: Trained, now: Round) -> Message:
        gives = now.number == 1 and after.client.id not in self.options.keep_out
        return Message(select(after.own, {self.base.personal}) if gives else {}, {"samples": after.client.samples})

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if now.number > 1:
            return server | {f"seen.{reply.client}": torch.tensor(True) for reply in replies}
        given = {reply.client: inside(reply.message.tensors, self.base.personal) for reply in replies}
        modules = [tensors for tensors in given.values() if tensors]
        if not modules:
            raise MethodError("pm-moe: no client gives its module to the pool")
        absent = {name: torch.zeros_like(tensor) for name, tensor in modules[0].items()}
        pool = {
            f"pool.{name}": torch.stack([(given.get(client) or absent)[name] for client in range(now.clients)])
            for name in absent
        }
        present = torch.tensor([bool(given.get(client)) for client in range(now.clients)])
        return pool | {_PRESENT: present.to(next(iter(pool.values())).device)}

    @property
    def note(self) -> str:
        base = self.base.title
        return f"pm-moe over {base}: round 1 is {base} alone, then only gates are trained"

    def remarks(self, server: State) -> Sequence[str]:
        absent, base = int((~server[_PRESENT]).sum()), self.base
        said = [f"{absent} of {len(server[_PRESENT])} clients kept their modules out of the pool"]
        if base.deducible:
            said.append(f"from {base.title}'s messages the server can work out these modules all the same")
        return said if absent else []


def _base(name: str) -> type[Method]:
    from fedexperts.methods import method_class, registry  # here: this file is part of the registry

    if not method_class(name).personal:
        able = ", ".join(kind.name for kind in registry().values() if kind.personal)
        raise MethodError(f"'{name}' names no personal module that pm-moe could pool; these do: {able}")
    return method_class(name)


def _seen(module: nn.Module, z: Tensor) -> Tensor:
    """What the gate reads: the module's input; of a text's words, which are only names, what the module makes of them.

    With fastText that is their mean embedding.
    """
    return z if z.is_floating_point() else cast(Tensor, module(z))


def _parted(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of how to train, and the base's own options."""
    train = {name: value for name, value in values.items() if name in TrainSettings.model_fields}
    return train, {name: value for name, value in values.items() if name not in train}


def _same(given: Any, saved: Any) -> bool:
    """Whether a value as it may be given, a word of the command line even, is the one that a run saved."""
    return str(given) == (",".join(map(str, saved)) if isinstance(saved, tuple | list) else str(saved))
