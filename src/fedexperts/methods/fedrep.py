"""FedRep: the extractor is everyone's, the head is the client's own; the head is trained first, then the extractor."""

from collections.abc import Sequence

from pydantic import Field

from fedexperts.config import Frozen
from fedexperts.methods.base import Method, Round, Stage
from fedexperts.methods.message import Owner


class FedRep(Method):
    """The head h_i by many epochs with the representation φ fixed, then φ by `--epochs` with h_i fixed (Algorithm 1).

    The paper trains heads for 10 epochs and φ for 1 or 5. The server's mean is weighted by samples, as in the authors'
    code. That code ends with one more round in which all clients train their heads; here there is none.
    """

    name = "fedrep"
    title = "FedRep"
    source = "Collins et al. 2021: Exploiting Shared Representations for Personalized Federated Learning, ICML"
    owners = {"extractor": Owner.SHARED, "head": Owner.PRIVATE}
    personal = "head"

    class Options(Frozen):
        head_epochs: int = Field(10, ge=1, description="epochs for the head at the start of a round")

    options: Options

    def stages(self, now: Round) -> Sequence[Stage]:
        return [
            Stage(("head",), self.loss, self.options.head_epochs),
            Stage(("extractor",), self.loss, self.train.epochs),
        ]
