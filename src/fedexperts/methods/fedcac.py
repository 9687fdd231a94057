"""FedCAC: what matters most to a client comes from clients to whom the same matters, the rest from everyone."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedexperts.config import Frozen
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
        beta: int = Field(100, ge=1, description="round β after which critical parameters are shared with nobody")

    options: Options

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        model = select(server, set(self.owners))
        return Message({name: _merged(tensor, name, server, client.id) for name, tensor in model.items()})

    def reply(self, after: Trained, now: Round) -> Message:
        model = super().reply(after, now)
        masks = {
            f"mask.{name}": packed(self.critical(tensor, after.received[name]))
            for name, tensor in model.tensors.items()
            if tensor.is_floating_point()
        }
        return Message({**model.tensors, **masks}, model.numbers)

    def critical(self, trained: Tensor, received: Tensor) -> Tensor:
        """M_i of one tensor."""
        sensitivity = ((trained - received) * trained).abs()
        most = max(1, int(self.options.critical * sensitivity.numel()))
        least = sensitivity.flatten().topk(most).values.amin()
        return (sensitivity >= least) & (sensitivity > 0)

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        state = server | weighted_mean(replies, set(self.owners))
        shares = self.shares(overlaps(replies), now)
        for name in _masked(replies[0]):
            parameters = torch.stack([reply.message.tensors[name].flatten() for reply in replies])
            for reply, shared in zip(replies, shares.to(parameters) @ parameters, strict=True):
                bits = reply.message.tensors[f"mask.{name}"]
                state[f"mask.{reply.client}.{name}"] = bits
                state[f"critical.{reply.client}.{name}"] = shared[unpacked(bits, shared.shape)]
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


def overlaps(replies: Sequence[Reply]) -> Tensor:
    """O, clients × clients."""
    common = torch.zeros(len(replies), len(replies), dtype=torch.float64)
    for name in _masked(replies[0]):
        shape = replies[0].message.tensors[name].shape
        masks = torch.stack([unpacked(reply.message.tensors[f"mask.{name}"], shape).flatten() for reply in replies])
        common = common.to(masks.device) + masks.float() @ masks.float().T  # whole numbers: exact
    sizes = common.diagonal()
    return 2 * common / (sizes[:, None] + sizes).clamp(min=1)


def _masked(reply: Reply) -> list[str]:
    """The tensors that have critical parameters."""
    return [name for name in reply.message.tensors if f"mask.{name}" in reply.message.tensors]


def _merged(tensor: Tensor, name: str, server: State, client: int) -> Tensor:
    """θ^g with a client's critical parameters, if it has any yet."""
    bits = server.get(f"mask.{client}.{name}")
    if bits is None:
        return tensor
    return tensor.masked_scatter(unpacked(bits, tensor.shape), server[f"critical.{client}.{name}"])


def packed(mask: Tensor) -> Tensor:
    """A mask as bits, eight in a byte."""
    flat = mask.flatten().to(torch.uint8)
    rows = F.pad(flat, (0, -len(flat) % 8)).reshape(-1, 8)
    return (rows * _places(mask.device)).sum(1, dtype=torch.uint8)


def unpacked(bits: Tensor, shape: torch.Size) -> Tensor:
    """The mask of this shape again."""
    flat = (bits[:, None] & _places(bits.device)).flatten() > 0
    return flat[: shape.numel()].reshape(shape)


def _places(device: torch.device) -> Tensor:
    return 2 ** torch.arange(8, dtype=torch.uint8, device=device)
