"""FedBABU: one head for all that is never trained while they federate; at the end everyone fine-tunes a model."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedexperts.config import Frozen
from fedexperts.methods.base import Method, Round, Stage, Trained
from fedexperts.methods.message import Message, Owner, State
from fedexperts.task import ClientSpec

MODEL = {"body": ("extractor",), "head": ("head",), "full": ("extractor", "head")}


class FedBABU(Method):
    """Clients train the body, under a head that is as it was drawn, and the server averages the bodies (Algorithm 1).

    The head is drawn from the run's seed, the same on every client, so it need not be sent, not even once.

    The last round is the fine-tuning, by all clients, sampled or not: each gets the last body, trains as the options
    say, replies nothing, and uses what it has then. Evaluations before it are of the shared body under the fixed head.

    A body makes up for a head that cannot grow by large features, and the rate that trained it throws the head off. The
    authors' rate falls to a hundredth until the fine-tuning; here rates do not fall, so that it has a lower one.
    """

    name = "fedbabu"
    title = "FedBABU"
    source = "Oh et al. 2022: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR"
    owners = {"extractor": Owner.SHARED, "head": Owner.PRIVATE}
    personal = "head"

    class Options(Frozen):
        tuned: Literal["body", "head", "full"] = Field("full", description="what is fine-tuned in the last round")
        tuning_epochs: int = Field(5, ge=1, description="epochs of the fine-tuning")
        tuning_lr: float | None = Field(
            None, gt=0, description="learning rate of the fine-tuning (default: a tenth of --lr)"
        )

    options: Options

    def stages(self, now: Round) -> Sequence[Stage]:
        if not self.everyone(now):
            return [Stage(MODEL["body"], self.loss, self.train.epochs)]
        parts, rate = MODEL[self.options.tuned], self.options.tuning_lr or self.train.lr / 10
        return [Stage(parts, self.loss, self.options.tuning_epochs, dict.fromkeys(parts, rate))]

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        """The body; nothing when all rounds are over, as everybody has a model of its own then."""
        return super().send(server, client, now) if now.number <= now.total else Message()

    def reply(self, after: Trained, now: Round) -> Message:
        return Message() if self.everyone(now) else super().reply(after, now)

    def everyone(self, now: Round) -> bool:
        return now.number == now.total

    def same_start(self) -> bool:
        return True

    def kept(self) -> set[str]:
        return set(self.owners)

    @property
    def note(self) -> str:
        epochs, tuned = self.options.tuning_epochs, self.options.tuned
        return f"fedbabu: the last round is fine-tuning by all clients ({tuned}, {epochs} epochs)"
