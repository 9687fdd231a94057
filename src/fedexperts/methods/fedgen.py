"""FedGen: the server learns to make features that the clients' heads agree on, and clients learn from those too."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.config import Frozen
from fedexperts.methods.at_server import held, in_batches, loaded, step
from fedexperts.methods.base import Batch, Method, Model, Reply, Round, Trained, weighted_mean
from fedexperts.methods.message import Message, State, select
from fedexperts.task import ClientSpec

_COUNTS = "labels.counts"
_FEATURES, _CLASSES, _READY = "generated.features", "generated.classes", "generated.ready"


class Generator(nn.Sequential):
    """G_w: noise and a class (one-hot), side by side, become features."""

    def __init__(self, noise: int, hidden: int, classes: int, features: int) -> None:
        super().__init__(
            nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)
        )


class FedGen(Method):
    """The server's G_w learns by CE(σ(1/K Σ_k g(z; θ_k)), y), z ~ G_w(·|y), y ~ p̂: g are the heads that came,
    p̂ the shares of the classes in the label counts that came with them. Clients learn by

    L = CE on their data + α·CE(g(z; θ), y), z and y as above. Extractor and head are averaged by samples.

    The paper sends G_w, and a client draws from it in every step. Here the server draws once a round, and sends a block
    of features and classes that all clients use in all their steps: about as many bytes, and a larger sample. Heads are
    linear, so the mean of their logits is what their mean gives. Adam begins anew in every round. In the first round
    there is nothing to learn from, as in the authors' code; from there are the generator's size, its steps, and a term
    that keeps features apart, exp(−mean ‖ε_i − ε_j‖²·|z_i − z_j|), all of which the equations leave open. Not from
    there: an α of 10 that falls, teachers weighted by class, and a pull of predictions towards those for the features.

    The label counts are those of the client's data in the first round; under drift they stay so.
    """

    name = "fedgen"
    title = "FedGen"
    source = "Zhu et al. 2021: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML"

    class Options(Frozen):
        weight: float = Field(1.0, ge=0, description="weight α of the generated features in a client's loss")
        generated: int = Field(256, ge=1, description="features that the server sends in a round")
        latent: int = Field(32, ge=1, description="width of the generator's noise ε")
        hidden: int = Field(256, ge=1, description="width of the generator's hidden layer")
        generator_steps: int = Field(50, ge=1, description="steps of the generator in a round")
        generator_batch: int = Field(32, ge=2, description="features in a step of the generator")
        generator_lr: float = Field(3e-4, gt=0, description="the generator's learning rate, with Adam")
        diversity: float = Field(1.0, ge=0, description="weight of the term that keeps generated features apart")

    options: Options

    def loss(self, model: Model, batch: Batch, received: State) -> Tensor:
        generated = F.cross_entropy(model.head(received[_FEATURES]), received[_CLASSES])
        return super().loss(model, batch, received) + self.options.weight * received[_READY] * generated

    # --- messages

    def start(self, model: Model) -> State:
        weight, count = model.head.weight, self.options.generated
        generator = self._generator(weight).to(weight)
        return {
            **super().start(model),
            **held(generator, "generator"),
            _FEATURES: weight.new_zeros(count, weight.shape[1]),
            _CLASSES: torch.zeros(count, dtype=torch.int64),
            _READY: weight.new_zeros(()),
        }

    def send(self, server: State, client: ClientSpec, now: Round) -> Message:
        return Message(select(server, {"extractor", "head", "generated"}))

    def reply(self, after: Trained, now: Round) -> Message:
        model = super().reply(after, now)
        counts = torch.tensor(after.client.label_counts)  # not on a GPU: the server draws with numpy
        return Message({**model.tensors, _COUNTS: counts}, model.numbers)

    def combine(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        if not replies:
            return server
        return {**server, **weighted_mean(replies, {"extractor", "head"}), **self._generate(server, replies, now)}

    # --- the server's generator

    def _generate(self, server: State, replies: Sequence[Reply], now: Round) -> State:
        """The generator after this round's steps, and what it makes then."""
        teacher = weighted_mean(replies, {"head"}, equal=True)
        generator = loaded(lambda: self._generator(server["head.weight"]), server, "generator")
        noise, classes = self._draw(replies, now, like=teacher["head.weight"])
        on_gpu = noise.is_cuda
        optimizer = torch.optim.Adam(generator.parameters(), self.options.generator_lr, fused=True, capturable=on_gpu)
        inputs = torch.cat([noise, F.one_hot(classes, len(teacher["head.bias"])).to(noise)], dim=1)

        def learn(x: Tensor, e: Tensor, y: Tensor) -> None:
            features = generator(x)
            answer = F.linear(features, teacher["head.weight"], teacher["head.bias"])
            step(optimizer, F.cross_entropy(answer, y) + self.options.diversity * sameness(e, features))

        batch = self.options.generator_batch
        learned = self.options.generator_steps * batch
        in_batches(learn, (inputs, noise, classes), torch.arange(learned, device=noise.device)[None], batch)
        with torch.no_grad():
            block = generator.eval()(inputs[learned:])
        return {
            **held(generator, "generator"),
            _FEATURES: block,
            _CLASSES: classes[learned:].clone(),  # a view would keep all that the steps saw
            _READY: torch.ones_like(server[_READY]),
        }

    def _draw(self, replies: Sequence[Reply], now: Round, like: Tensor) -> tuple[Tensor, Tensor]:
        """ε and y ~ p̂ for all steps of the round and then for the block."""
        options, rng = self.options, now.stream("generator")
        counts = torch.stack([reply.message.tensors[_COUNTS] for reply in replies]).sum(0).cpu().numpy()
        size = options.generator_steps * options.generator_batch + options.generated
        classes = rng.choice(len(counts), size, p=counts / counts.sum())
        noise = rng.standard_normal((size, options.latent))
        return torch.from_numpy(noise).to(like), torch.from_numpy(classes).to(like.device)

    def _generator(self, head: Tensor) -> Generator:
        """For a head with these weights, classes × features."""
        return Generator(self.options.latent, self.options.hidden, *head.shape)


def sameness(noise: Tensor, features: Tensor) -> Tensor:
    """Close to 1 where features are alike although their noise is not."""
    of_noise, of_features = F.pdist(noise).square(), F.pdist(features, p=1)
    # A mean over all pairs, of which these are half, and over both widths.
    return (of_noise @ of_features * (-2 / (len(noise) * noise.numel() * features.shape[1]))).exp()
