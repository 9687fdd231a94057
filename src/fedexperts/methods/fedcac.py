"""FedCAC: what matters most to a client comes from clients to whom the same matters, the rest from everyone."""

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedexperts.config import Frozen, Rounds
from fedexperts.methods.base import Method, Reply, Round, Trained, weighted_mean
from fedexperts.methods.message import Message, State, select
from fedexperts.task import ClientSpec


class FedCAC(Method):
    """After training, a parameter's sensitivity is |Δθ·θ|, Δθ what the round changed of it; M_i marks those τ of each
    tensor that have the highest. They are client i's critical parameters.

    Two clients' overlap is O_ij = 1 − ‖M_i − M_j‖₁/(2n), n the critical parameters of each. Client i shares its own
    with C_i, those with O_ij ≥ O_avg + t/β·(O_max − O_avg), over all pairs, t the round: with fewer and fewer, after
    round β with none. It gets M_i ⊙ θ_i^c + (1 − M_i) ⊙ θ^g, θ_i^c the mean of itself and C_i, θ^g that of all, which
    is weighted by samples.

    The server knows M_i, so it sends the sum, which is as large as a model; up go the model and a bit for each of its
    parameters. The server remembers M_i and the critical part of θ_i^c until the client's next round; a client that has
    not taken part yet gets θ^g. Where not all take part, C_i are of those who do. What did not move is not critical, so
    n may differ: then 2n is the sum of both. Running statistics are treated as parameters are. As in the authors' code,
    τ is of each tensor; τ and β there are 0.5 and 100 for CIFAR-10, 0.4 and 170 for CIFAR-100, with 300 rounds.
    """

    name = "fedcac"
    title = "FedCAC"
    source = (
        "Wu et al. 2023: Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through "
        "Cautiously Aggressive Collaboration, ICCV"
    )

    class Options(Frozen):
        critical: float = Field(0.5, gt=0, le=1, description="part τ of the parameters that is critical")
        beta: Rounds = Field(100, description="round β after which critical parameters are shared with nobody")

    options: Options

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        model = select(server, set(self.owners))
        if (bits := server.get(f"mask.{client.id}")) is None:
            return Message(model)
        names = self._masked(model)
        everyones = torch.cat([model[name].flatten() for name in names])
        merged = everyones.masked_scatter(unpacked(bits, len(everyones)), server[f"critical.{client.id}"])
        values = torch.split(merged, [model[name].numel() for name in names])
        return Message(model | {name: own.view_as(model[name]) for name, own in zip(names, values, strict=True)})

    def replies(self, together: Sequence[Trained], now: Round) -> Sequence[Message]:
        models = super().replies(together, now)
        received, trained = [after.received for after in together], [model.tensors for model in models]
        masks = {
            f"mask.{name}": packed(self.critical(rows(trained, name), rows(received, name))).unbind()
            for name in self._masked(trained[0])
        }
        return [
            Message({**model.tensors, **{name: bits[i] for name, bits in masks.items()}}, model.numbers)
            for i, model in enumerate(models)
        ]

    def critical(self, trained: Tensor, received: Tensor) -> Tensor:
        """M_i of one tensor, a row for each client i."""
        sensitivity = ((trained - received) * trained).abs()
        most = max(1, int(self.options.critical * sensitivity.shape[1]))
        least = sensitivity.topk(most, sorted=False).values.amin(1, keepdim=True)
        return (sensitivity >= least) & (sensitivity > 0)

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        state = server | weighted_mean(replies, set(self.owners))
        sent, names = [reply.message.tensors for reply in replies], self._masked(state)
        masks = [unpacked(rows(sent, f"mask.{name}"), state[name].numel()) for name in names]
        together = torch.cat(masks, dim=1)
        shares = self.shares(overlaps(together), now)
        counts = torch.stack([mask.sum(1) for mask in masks]).tolist()
        critical = []  # tensor by tensor: all clients' parameters need not lie in memory twice
        for name, mask, sizes in zip(names, masks, counts, strict=True):
            parameters = rows(sent, name)
            critical.append(torch.split((shares.to(parameters) @ parameters)[mask], sizes))
        bits = packed(together)
        for i, reply in enumerate(replies):
            state[f"mask.{reply.client}"] = bits[i].clone()  # a view would keep everybody's
            state[f"critical.{reply.client}"] = torch.cat([of_all[i] for of_all in critical])
        return state

    def shares(self, overlap: Tensor, now: Round) -> Tensor:
        """How much of each client's parameters is in θ_i^c: a row for each client i."""
        itself = torch.eye(len(overlap), dtype=torch.bool, device=overlap.device)
        chosen = itself
        if len(overlap) > 1:
            pairs = overlap[~itself]
            chosen = itself | (overlap >= torch.lerp(pairs.mean(), pairs.amax(), now.number / self.options.beta))
        chosen = chosen.to(overlap)
        return chosen / chosen.sum(1, keepdim=True)

    def _masked(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """The tensors that have critical parameters, always in the same order."""
        model = select(tensors, set(self.owners))
        return sorted(name for name, tensor in model.items() if tensor.is_floating_point())


BLOCK = 2**22
"""Parameters that are counted at once: few for the memory, and up to 2²⁴ float32 counts in whole numbers."""


def overlaps(masks: Tensor) -> Tensor:
    """O, clients × clients."""
    parts = (part.float() for part in torch.split(masks, BLOCK, dim=1))
    common = torch.stack([part @ part.T for part in parts]).sum(0, dtype=torch.float64)
    sizes = common.diagonal()
    return 2 * common / (sizes[:, None] + sizes).clamp(min=1)


def rows(clients: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
    """A tensor of all clients, a row for each."""
    return torch.stack([tensors[name] for tensors in clients]).flatten(1)


def packed(masks: Tensor) -> Tensor:
    """Rows of masks as bits, eight in a byte."""
    eights = F.pad(masks.to(torch.uint8), (0, -masks.shape[-1] % 8)).reshape(*masks.shape[:-1], -1, 8)
    return (eights * _places(masks.device)).sum(-1, dtype=torch.uint8)


def unpacked(bits: Tensor, size: int) -> Tensor:
    """The masks of this size again."""
    return ((bits[..., None] & _places(bits.device)) > 0).flatten(-2)[..., :size]


def _places(device: torch.device) -> Tensor:
    return 2 ** torch.arange(8, dtype=torch.uint8, device=device)
