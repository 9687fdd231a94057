"""FML: a private model and a shared one, the meme, learn from the data and from each other."""

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedexperts.methods.base import Batch, Model
from fedexperts.methods.message import Owner, State
from fedexperts.methods.mutual import Mutual, divergence
from fedexperts.models import Parts
from fedexperts.task import ClientSpec


class FML(Mutual):
    """L_local = α·CE + (1−α)·KL(p_meme ‖ p_local), L_meme = β·CE + (1−β)·KL(p_local ‖ p_meme).

    Each loss moves its own model only. The meme is averaged, the local model is what the client uses.
    """

    name = "fml"
    title = "FML"
    source = "Shen et al. 2020: Federated Mutual Learning"
    owners = {"meme": Owner.SHARED, "local": Owner.PRIVATE}
    used = "local"

    class Options(Mutual.Options):
        alpha_local: float = Field(0.5, ge=0, le=1, description="weight α of the labels in the local model's loss")
        beta_meme: float = Field(0.5, ge=0, le=1, description="weight β of the labels in the meme's loss")

    options: Options

    def parts(self, client: ClientSpec) -> Parts:
        local, meme = self.pair(client)
        return {"meme": meme, "local": local}

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        local, meme = model.local(batch.x), model.meme(batch.x)
        alpha, beta = self.options.alpha_local, self.options.beta_meme
        of_local = alpha * F.cross_entropy(local, batch.y) + (1 - alpha) * divergence(meme, local)
        of_meme = beta * F.cross_entropy(meme, batch.y) + (1 - beta) * divergence(local, meme)
        return of_local + of_meme
