"""FedEMoE: private experts of different shapes beside a shared one that is itself a mixture, and grows and shrinks."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from fedexperts.config import NumbersInTurn
from fedexperts.errors import MethodError
from fedexperts.methods.base import Batch, Method, Model, Reply, Round, Stage, Table, Trained, weighted_mean
from fedexperts.methods.evolution import COUNTS, LOG, Rules, beginning, changes, evolve, tables
from fedexperts.methods.growth import PART, Tree
from fedexperts.methods.message import Message, Owner, State, part_of, select, under
from fedexperts.methods.mutual import divergence
from fedexperts.models import (
    ConvExtractor,
    ElasticExpert,
    Parts,
    Shape,
    SparseExperts,
    TableExtractor,
    TextExtractor,
    best_of,
    build,
    is_backbone,
    out_shape,
    own_model,
    reads_text,
)  # fmt: skip
from fedexperts.task import ClientSpec

GROUPS = {1: ((1, 1, 1, 2), 4), 2: ((1, 1, 2, 3), 3), 3: ((1, 2, 3, 3, 3), 4), 4: ((2, 2, 3, 3), 3), 5: ((2, 2), 1)}
"""Table 12: which experts are in a group, and how many experts, the shared one among them, a sample uses (K)."""
FILTERS = {1: (32, 128), 2: (64,), 3: ()}
"""Table 13: convolutions of Expert_1, Expert_2 and Expert_3; each ends in one linear layer."""


class TopGate(nn.Module):
    """A sample's weights for the private experts and, last, the shared one; only the best `top` count.

    They sum to 1, but for `top` 1, where the softmax weight stays: a gate whose weights are 1 would never learn.
    """

    uses: Tensor  # in the present round
    last: Tensor  # in the last one that the client trained in

    def __init__(self, inputs: int, experts: int, top: int) -> None:
        super().__init__()
        self.top = min(top, experts)
        self.scores = nn.Linear(inputs, experts)
        self.register_buffer("uses", torch.zeros(experts))
        self.register_buffer("last", torch.zeros(experts))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x.flatten(1)).softmax(1)
        weights = best_of(scores, self.top)
        if self.training:
            self.uses.add_((weights > 0).sum(0))
        return weights

    @property
    def frequencies(self) -> Tensor:
        """a_n of the private experts (Eq. 4), of the last training; all alike before any was used."""
        uses = torch.where(self.uses.sum() > 0, self.uses, self.last)
        uses = uses + (uses.sum() == 0).to(uses)
        return (uses / uses.sum())[:-1]


class FedEMoE(Method):
    """Parts: extractor FE (one convolution or a backbone), experts PEG_i (private, Tables 12 and 13), shared expert
    SE, gate, head.

    All experts map the extractor's features to one width; ŷ = head(Σ over the best K of gate weight · output). SE is a
    tree of mixtures (`ElasticExpert`). A round, with `exchange` before (Algorithm 2) or after (Figure 2) the training:

    1. Knowledge exchange on 64 samples at temperature 2: SE by KL(R_P ‖ R_S), R_P = Σ a_n R_n (Eq. 3, 4); the private
       experts by Σ_n KL(R_S ‖ R_n) (Eq. 5), R_S as SE was before. Each fits what the other said, not what it says now.
    2. Local training of everything by cross-entropy.
    3. Up: FE, routers, the sub-experts that samples used, and how many did (b_ij).
    4. Server: FE by weighted mean over the clients that have the same; a sub-expert by the mean over those who used it,
       unchanged if nobody did; B_g = Σ w_i b_i.
    5. Each sub-expert has a threshold v_t = γ·p_θ(t) + (1 − γ)·v_{t−1} (Eq. 8). Every `scale_every` rounds one whose
       p_θ is above it becomes a mixture (Algorithm 3), and a mixture of leaves whose mean tail energy is above a limit
       becomes one sub-expert again (Algorithm 4), up to a depth and a number. Both are decided before either is done.

    With `--model` one or several backbones (Table 3, Appendix E.2) the mixture stands in the place of their first FC
    layer, on the mean over all places, a vector: FE is the trunk. Clients with different trunks share each with those
    who have the same (the paper does not say how FE is averaged then), and all of them SE, which reads as many features
    of each: `--model backbones` ends alike. Client k has backbone k modulo their number, so both kinds of difference
    are mixed. A model of the user's own is a trunk too, up to its head. Any other `--model` is one convolution.

    Taken here, as the tables do not add up: FE has 16 filters, outputs are 640 wide (Expert_1 to 3 are then 0.85, 1.05
    and 2.01 M parameters on CIFAR), a sub-expert is two linear layers with 128 between, the spectra are means over
    both, client k has group k modulo five, whatever model it has, and the first mixture, the root, never shrinks.
    """

    name = "fedemoe"
    title = "FedEMoE"
    source = "FedEMoE: Elastic Mixture of Experts for heterogeneous federated learning (under review; seed 002)"
    owners = {
        "extractor": Owner.SHARED,
        "experts": Owner.PRIVATE,
        "shared_expert": Owner.SHARED,
        "gate": Owner.PRIVATE,
        "head": Owner.PRIVATE,
        "before": Owner.PRIVATE,  # SE as it was when the exchange began
    }

    class Options(Rules):
        groups: NumbersInTurn = Field(
            (1, 2, 3, 4, 5), description="private expert groups (1-5, Table 12); several go to clients in turn"
        )
        width: int = Field(640, ge=1, description="what all experts' outputs have in common")
        hidden: int = Field(128, ge=1, description="width within a sub-expert of the shared expert")
        branches: int = Field(3, ge=1, description="N: sub-experts of a mixture in the shared expert")
        active: int = Field(2, ge=1, description="sub-experts of a mixture that a sample uses")
        limit: int = Field(9, ge=1, description="sub-experts that the shared expert may have")
        depth: int = Field(2, ge=1, description="mixtures within each other that it may have")
        exchange: Literal["before", "after", "none"] = Field(
            "before",
            description="knowledge exchange before the local training (Algorithm 2), after it (Figure 2), none",
        )
        exchange_samples: int = Field(64, ge=1, description="samples of the knowledge exchange")
        exchange_lr: float | None = Field(
            None, gt=0, description="learning rate of the knowledge exchange (default: that of the training)"
        )
        temperature: float = Field(2.0, gt=0, description="temperature of the knowledge exchange")
        private: bool = Field(True, description="whether there are private experts (ablation: no)")
        elastic: bool = Field(True, description="whether the shared expert grows and shrinks (ablation: no)")

        @model_validator(mode="after")
        def _room(self) -> Self:
            if self.active > self.branches:
                raise ValueError(f"a sample cannot use {self.active} of {self.branches} branches; give --active less")
            if self.limit < self.branches:
                raise ValueError(f"limit {self.limit} is less than the {self.branches} branches that it begins with")
            return self

    options: Options

    @property
    def note(self) -> str:
        """Which ablation this is."""
        options = self.options
        alone = "without private experts nobody exchanges knowledge with the shared one"
        said = [alone] * (not options.private)
        said += [f"the shared expert is fixed at {options.branches} sub-experts"] * (not options.elastic)
        said += ["no knowledge is exchanged"] * (options.private and options.exchange == "none")
        return f"fedemoe: {'; '.join(said)}" if said else ""

    # --- the model

    def parts(self, client: ClientSpec) -> Parts:
        options = self.options
        number = options.groups[client.id % len(options.groups)]
        if number not in GROUPS:
            raise MethodError(f"there is no expert group {number}; --groups takes {', '.join(map(str, GROUPS))}")
        kinds, top = GROUPS[number] if options.private else ((), 1)
        extractor = _extractor(client)
        between = out_shape(extractor, client.shape)
        inputs = math.prod(between)
        shared, before = (
            ElasticExpert(
                inputs, options.width, options.hidden, options.branches, options.active, options.limit, options.depth
            )
            for _ in range(2)
        )
        head = nn.Sequential(nn.Linear(options.width, options.width), nn.ReLU())
        head.append(nn.Linear(options.width, client.classes))
        return {
            "extractor": extractor,
            "experts": SparseExperts([_expert(kind, between, options.width) for kind in kinds], options.width),
            "shared_expert": shared,
            "gate": TopGate(inputs, len(kinds) + 1, top),
            "head": head,
            "before": before,
        }

    @property
    def experts(self) -> Sequence[str]:
        """Where all clients have as many; else there is no common name for them."""
        sizes = {len(GROUPS[number][0]) for number in self.options.groups if number in GROUPS}
        if not self.options.private or len(sizes) != 1:
            return ()
        return [*(f"private {number}" for number in range(sizes.pop())), "shared"]

    def weigh(self, model: Model, x: Tensor, received: State) -> Tensor:
        return cast(Tensor, model.gate(model.extractor(x)))

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        features = model.extractor(x)
        weights = model.gate(features)
        private, shared = weights[:, :-1], weights[:, -1]
        used, chosen = private.topk(min(model.gate.top, private.shape[1]), dim=1)
        return cast(Tensor, model.experts(features, chosen, used) + model.shared_expert(features, shared))

    # --- training

    def stages(self, now: Round) -> Sequence[Stage]:
        trained = tuple(part for part in self.owners if part != "before")
        training = Stage(trained, self.loss, self.train.epochs)
        if self.options.exchange == "none" or not self.options.private:
            return [training]
        samples, lr = self.options.exchange_samples, self.options.exchange_lr or self.train.lr
        exchange = [
            Stage((taught,), loss, 1, {taught: lr}, samples=samples, copies=copies)
            for taught, loss, copies in (
                ("shared_expert", self.teach_shared, {"before": "shared_expert"}),
                ("experts", self.teach_private, {}),
            )
        ]
        return [*exchange, training] if self.options.exchange == "before" else [training, *exchange]

    def teach_shared(self, model: Model, batch: Batch, received: State) -> Tensor:
        """L_S = KL(R_P ‖ R_S)."""
        features = model.extractor(batch.x)
        said = torch.stack([expert(features) for expert in model.experts])
        consensus = torch.einsum("n,nbw->bw", model.gate.frequencies, said)
        return self._distance(consensus, model.shared_expert(features))

    def teach_private(self, model: Model, batch: Batch, received: State) -> Tensor:
        """L_P = Σ_n KL(R_S ‖ R_n)."""
        features = model.extractor(batch.x)
        said = model.before(features)
        return torch.stack([self._distance(said, expert(features)) for expert in model.experts]).sum()

    def _distance(self, target: Tensor, learner: Tensor) -> Tensor:
        return divergence(target / self.options.temperature, learner / self.options.temperature)

    def finish(self, after: Trained, now: Round) -> State:
        return {"gate.last": after.own["gate.uses"], "gate.uses": torch.zeros_like(after.own["gate.uses"])}

    def uses(self, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"experts": own["gate.last"][:-1], f"{PART}.experts": own[f"{PART}.counts"]}

    # --- messages

    def kept(self) -> set[str]:
        return {"experts", "gate", "head"}

    def heard(self, message: Message) -> State:
        return {}

    def start(self, model: Model) -> State:
        state = select(model.state_dict(), {"extractor", PART})
        limit, like = self.options.limit, state[f"{PART}.counts"]
        return {**state, COUNTS: like.new_zeros(limit), **beginning(limit, self.options.threshold)}

    def alike(self) -> set[str]:
        return {PART}

    def start_of(self, models: Iterable[Model]) -> State:
        """Every kind of FE that clients have, side by side."""
        first, *others = models
        trunks = {n: t for model in others for n, t in select(model.state_dict(), {"extractor"}).items()}
        return trunks | self.start(first)

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        """FE of the client's kind, and of SE what the tree has now."""
        return Message(under(server, _kind(client)) | _standing(server, _tree(server)))

    def receive(self, own: Mapping[str, Tensor], message: Message) -> State:
        """Places that the tree does not use are empty."""
        sent = message.tensors
        shared = {n: sent[n] if n in sent else torch.zeros_like(own[n]) for n in own if part_of(n) == PART}
        before = {name.replace(PART, "before", 1): tensor for name, tensor in shared.items()}
        return select(sent, {"extractor"}) | shared | before

    def replies(self, together: Sequence[Trained], now: Round) -> Sequence[Message]:
        """All of them have the same tree. A device is waited for once, not for each of them."""
        tree, counts = Tree.of(together[0].own), [after.own[f"{PART}.counts"] for after in together]
        return [
            self._reply(after, tree, count, uses)
            for after, count, uses in zip(together, counts, torch.stack(counts).tolist(), strict=True)
        ]

    def _reply(self, after: Trained, tree: Tree, counts: Tensor, uses: Sequence[float]) -> Message:
        unused = tuple(f"{PART}.experts.{leaf}." for leaf, count in enumerate(uses) if count == 0)
        learned = tuple(f"{PART}.{kind}." for kind in ("experts", "routers"))
        standing = _standing(after.own, tree)
        trained = {n: t for n, t in standing.items() if n.startswith(learned) and not n.startswith(unused)}
        own = select(after.own, {"extractor"}) | trained | {COUNTS: counts}
        return Message(own, {"samples": after.client.samples})

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        state = self._together(server, replies) if replies else server
        return evolve(state, self.options, now) if self.options.elastic else state

    def _together(self, server: State, replies: Sequence[Reply]) -> State:
        """FE, SE and B_g of all that came."""
        tree = Tree.of(server)
        state = server | _mean(replies, *(f"{PART}.routers.{router}" for router in tree.used_routers), COUNTS)
        kinds = {".".join(name.split(".")[:2]): None for name in select(server, {"extractor"})}
        for place in (*kinds, *(f"{PART}.experts.{leaf}" for leaf in tree.paths)):
            users = [reply for reply in replies if under(reply.message.tensors, place)]
            state |= _mean(users, f"{place}.") if users else {}
        return state

    def remarks(self, server: State) -> Sequence[str]:
        """Every change of the tree, and why."""
        leaf, router = (
            Message(under(server, f"{PART}.{one}")).payload_bytes / 1e6 for one in ("experts.0", "routers.0")
        )
        lines = []
        for change in changes(server[LOG].tolist(), Tree.of(server), self.options):
            leaves, held = len(change.tree.paths), self.options.expands if change.expanded else "above"
            size = leaves * leaf + len(change.tree.used_routers) * router
            figure, did = "effective rank", "expanded"
            if not change.expanded:
                figure, did = "tail energy", "is one sub-expert again"
            why = f"{figure} {change.figure:.3g}, {held} {change.limit:.3g}"
            lines.append(
                f"round {change.round}: sub-expert {change.leaf} {did} ({why}); the shared expert has now {leaves}, "
                f"{size:.2f} MB"
            )
        return lines or ["the tree of the shared expert has not changed"] * self.options.elastic

    def tables(self, server: State) -> Mapping[str, Table]:
        return tables(server)


def _kind(client: ClientSpec) -> str:
    """Where the tensors of the client's FE are: a trunk's go by its model's name, for the server may have several."""
    return f"extractor.{_place(client)}" if _has_trunk(client) else "extractor"


def _has_trunk(client: ClientSpec) -> bool:
    """Whether its model gives it an extractor: a backbone, or a model of the user's own."""
    return is_backbone(client.model) or own_model(client.model) is not None


def _place(client: ClientSpec) -> str:
    """The model's name as a name of a module, which has no dots."""
    return str(client.model).replace(".", "/")


def _extractor(client: ClientSpec) -> nn.Module:
    """FE: a backbone or a model of the user's own without its head, or one convolution with 16 filters, the mean

    embedding of a text, or a linear layer on a table's features.
    """
    shape = client.shape
    if _has_trunk(client):
        trunk = build(client.model, shape, client.classes)["extractor"]
        return nn.Sequential(OrderedDict({_place(client): trunk}))
    if reads_text(shape):
        return TextExtractor(shape, 32)
    if len(shape) == 1:
        return TableExtractor(shape, (32,))
    channels, *sides = shape
    padding = 0 if min(sides) >= 12 else 2  # so that two more convolutions with pooling find something
    return nn.Sequential(nn.Conv2d(channels, 16, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU())


def _expert(kind: int, shape: Shape, width: int) -> nn.Module:
    """Expert_1, Expert_2 or Expert_3; on a vector, linear layers take the convolutions' place."""
    if len(shape) == 3:
        return ConvExtractor(shape, FILTERS[kind], (width,))
    layers: list[nn.Module] = []
    for before, after in zip((*shape, *FILTERS[kind]), (*FILTERS[kind], width), strict=True):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def _tree(server: State) -> Tree:
    """Of a server's state, which nobody changes: to read it, a device is waited for."""
    structure = server[f"{PART}.routes"]
    if structure not in _TREES:
        _TREES[structure] = Tree.of(server)
    return _TREES[structure]


_TREES: MutableMapping[Tensor, Tree] = WeakTensorKeyDictionary()


def _standing(state: Mapping[str, Tensor], tree: Tree) -> State:
    """Of SE what the tree uses: its structure, its leaves and their routers."""
    kinds = ("routes", "turns", "exists")
    prefixes = tuple(
        [f"{PART}.experts.{leaf}." for leaf in tree.paths] + [f"{PART}.routers.{r}." for r in tree.used_routers]
    )
    return {n: t for n, t in state.items() if n.startswith(prefixes) or n in {f"{PART}.{kind}" for kind in kinds}}


def _mean(replies: Sequence[Reply], *prefixes: str) -> State:
    """The weighted mean of what begins so."""
    sent = [{name: t for name, t in reply.message.tensors.items() if name.startswith(prefixes)} for reply in replies]
    return weighted_mean([Reply(r.client, Message(t, r.message.numbers)) for r, t in zip(replies, sent, strict=True)])
