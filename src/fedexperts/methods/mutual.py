"""What methods of mutual learning have in common: two whole models on every client that teach each other."""

from typing import ClassVar, cast

from torch import Tensor
from torch.nn import functional as F

from fedexperts.methods.base import Method, Model
from fedexperts.methods.message import State
from fedexperts.methods.shared_model import SharedModel, shared_model
from fedexperts.models import Classifier
from fedexperts.task import ClientSpec


class Mutual(Method):
    """The client's own model, of its own architecture, and a small one that is the same for all. Not a method yet."""

    used: ClassVar[str]
    """The part that predicts."""

    class Options(SharedModel):
        pass

    options: Options

    def pair(self, client: ClientSpec) -> tuple[Classifier, Classifier]:
        """The client's own model, made first so that it starts as it would alone, and the shared one."""
        own = Classifier(client.model, client.shape, client.classes)
        return own, Classifier(shared_model(self.options, client), client.shape, client.classes)

    def represent(self, model: Model, x: Tensor, received: State) -> Tensor:
        return cast(Tensor, getattr(model, self.used).extractor(x))

    def predict(self, model: Model, x: Tensor, received: State) -> Tensor:
        return cast(Tensor, getattr(model, self.used)(x))


def divergence(teacher: Tensor, learner: Tensor) -> Tensor:
    """KL(p_teacher ‖ p_learner) of two models' logits, the mean over samples; only the learner is moved by it."""
    wanted, found = F.log_softmax(teacher.detach(), dim=1), F.log_softmax(learner, dim=1)
    return (wanted.exp() * (wanted - found)).sum(1).mean()  # `F.kl_div` cannot be stacked
