"""What makes FedMRL itself."""

import torch
from support import assert_same_bits, finished, make_simulation, make_task
from torch.nn import functional as F

from fedexperts.engine import Observer
from fedexperts.methods import Batch, Channel, Message, Model, Reply, part_of, select
from fedexperts.methods.base import weighted_mean
from fedexperts.methods.fedmrl import FedMRL
from fedexperts.task import ClientSpec

SPEC = ClientSpec(id=0, model="cnn4", shape=(1, 8, 8), classes=4, samples=100)
METHOD = FedMRL(options={"inner_width": 30, "inner_weight": 0.5})


def made(method: FedMRL = METHOD, spec: ClientSpec = SPEC) -> tuple[Model, Batch]:
    torch.manual_seed(0)
    return Model(method.parts(spec)), Batch(torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1]))


def gradients(weight: float) -> dict[str, torch.Tensor]:
    model, batch = made()
    FedMRL(options={"inner_width": 30, "inner_weight": weight}).loss(model, batch, {}).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_both_headers_read_one_representation_the_shared_one_its_beginning() -> None:
    model, batch = made()
    both = torch.cat([model.small.extractor(batch.x), model.local.extractor(batch.x)], dim=1)
    fused = both @ model.projector.weight.T + model.projector.bias
    assert fused.shape == (6, 500)
    inner, outer = model.small.head(fused[:, :30]), model.local.head(fused)
    expected = 0.5 * F.cross_entropy(inner, batch.y) + F.cross_entropy(outer, batch.y)
    torch.testing.assert_close(METHOD.loss(model, batch, {}), expected)
    torch.testing.assert_close(METHOD.predict(model, batch.x, {}), outer)


def test_the_inner_loss_shapes_only_the_first_values() -> None:
    without, with_it = gradients(0.0)["projector.weight"], gradients(1.0)["projector.weight"]
    assert torch.equal(without[30:], with_it[30:])
    assert not torch.isclose(without[:30], with_it[:30]).all(1).any()


def test_both_extractors_learn_from_both_losses() -> None:
    without, with_it = gradients(0.0), gradients(1.0)
    for name in ("small.extractor.fc2.weight", "local.extractor.fc2.weight"):
        assert without[name].abs().max() > 0
        assert not torch.allclose(without[name], with_it[name])


def test_a_client_with_fewer_features_than_the_shared_header_reads() -> None:
    model, batch = made(FedMRL(), ClientSpec(id=0, model="cnn-da", shape=(1, 8, 8), classes=4, samples=100))
    fused = FedMRL().represent(model, batch.x, {})
    assert fused.shape == (6, 250)  # half of what cnn5 gives
    torch.testing.assert_close(FedMRL().predict(model, batch.x, {}), model.local.head(fused[:, :120]))


def test_three_different_models_share_the_mean_of_a_small_one() -> None:
    sent: list[tuple[Channel, Reply]] = []

    class Keep(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            sent.append((channel, Reply(client, message)))

    task = make_task("cnn4,cnn2,cnn-da")
    simulation = make_simulation("fedmrl", task, observers=(Keep(),), executor="stacked", participation=1.0)
    simulation.step()
    assert {part_of(name) for _, reply in sent for name in reply.message.tensors} == {"small"}
    replies = [reply for channel, reply in sent if channel is Channel.UP]
    assert [reply.message.numbers["samples"] for reply in sorted(replies, key=lambda r: r.client)] == [
        32,
        29,
        17,
        12,
        24,
        16,
    ]
    assert_same_bits(simulation.server, weighted_mean(sorted(replies, key=lambda reply: reply.client)))
    widths = [simulation.client_state(k)["projector.weight"].shape for k in range(6)]
    assert widths == 2 * [(500, 1000), (500, 1000), (250, 620)]
    assert simulation.note == ""


def test_the_shared_model_is_a_choice() -> None:
    simulation = finished("fedmrl", make_task("cnn5,cnn4"), options={"shared_model": "cnn-da"}, rounds=1)
    assert select(simulation.server, {"small"})["small.head.weight"].shape == (4, 60)
