"""FedEMoE where the extractor is the trunk of a backbone, the same for all or not (Table 3)."""

from pathlib import Path

import pytest
import torch
from support import assert_close, assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.methods import Message, Reply, Round, select
from fedexperts.methods.fedemoe import FedEMoE
from fedexperts.methods.growth import PART
from fedexperts.methods.message import under
from fedexperts.task import ClientSpec

SMALL = {"width": 12, "hidden": 6, "scale_every": 2, "limit": 5}
DOUBLE = ("resnet18/16", "googlenet-512/16")
TASK = make_task(",".join(DOUBLE), (20, 16, 12))  # groups 1, 2 and 3 of experts; one step where there are 16


def test_the_mixture_stands_where_the_first_fully_connected_layer_stood() -> None:
    client = ClientSpec(id=2, model="resnet18", shape=(3, 32, 32), classes=10, samples=100)
    parts = FedEMoE().parts(client)
    trunk = sum(p.numel() for p in parts["extractor"].parameters())
    assert trunk == 11_173_962 - 5_130, "ResNet-18 without its head"
    assert [next(expert.parameters()).shape[1] for expert in parts["experts"].children()] == [512] * 5
    assert parts["gate"].scores.in_features == 512  # type: ignore[union-attr]
    assert next(parts[PART].parameters()).shape == (128, 512)


def test_each_trunk_is_the_mean_of_those_who_have_it_and_the_shared_expert_of_all() -> None:
    simulation = make_simulation("fedemoe", TASK, options=SMALL)
    method, server = simulation.method, simulation.server
    assert simulation.note == "", "everybody has a model of its own"
    kinds = [{n.split(".")[1] for n in select(simulation.message_for(k).tensors, {"extractor"})} for k in range(3)]
    assert kinds == [{DOUBLE[0]}, {DOUBLE[1]}, {DOUBLE[0]}]

    def reply(client: int, value: float) -> Reply:
        sent = {
            name: torch.full_like(tensor, value)
            for name, tensor in simulation.message_for(client).tensors.items()
            if tensor.is_floating_point()
        }
        counts = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
        return Reply(client, Message(sent | {"uses.counts": counts}, {"samples": 10 * (client + 1)}))

    after = method.combine(server, [reply(0, 1.0), reply(1, 2.0), reply(2, 5.0)], Round(1, 9, seed=0))
    first, second = (under(after, f"extractor.{name}") for name in DOUBLE)
    for name, expected in (("conv1.weight", 4.0), ("norm1.running_var", 4.0)):
        assert first[f"extractor.{DOUBLE[0]}.{name}"].unique().tolist() == pytest.approx([expected])
        assert second[f"extractor.{DOUBLE[1]}.{name}"].unique().tolist() == pytest.approx([2.0])
    assert after[f"{PART}.experts.0.0.weight"].unique().tolist() == pytest.approx([(10 + 40 + 150) / 60])
    alone = method.combine(server, [reply(1, 2.0)], Round(1, 9, seed=0))
    place = f"extractor.{DOUBLE[0]}"
    assert_same_bits(under(alone, place), under(server, place))


def test_clients_with_one_kind_of_trunk_begin_with_the_same() -> None:
    simulation = make_simulation("fedemoe", TASK, options=SMALL)
    first, second, third = (simulation.client_state(k) for k in range(3))
    place = f"extractor.{DOUBLE[0]}"
    assert_same_bits(under(first, place), under(third, place))
    assert not under(second, place)
    assert_same_bits(select(first, {PART}), select(second, {PART}))
    assert not torch.equal(first["head.0.weight"], third["head.0.weight"])


def test_double_heterogeneous_clients_together_equal_one_by_one_and_resumed_equal_uninterrupted(tmp_path: Path) -> None:
    values = {"rounds": 2, "participation": 1.0, "lr": 0.01, "options": SMALL, "checkpoint_every": 1}
    whole = finished("fedemoe", TASK, **values)
    assert_close(states(finished("fedemoe", TASK, **values, executor="stacked")), states(whole))
    begun = make_simulation("fedemoe", TASK, folder=tmp_path, **values)
    begun.step()
    begun.checkpoint()
    resumed = make_simulation("fedemoe", TASK, folder=tmp_path, **values)
    resumed.restore()
    resumed.run()
    assert_same_bits(states(resumed), states(whole))


def test_trunks_that_do_not_end_alike_cannot_share_an_expert() -> None:
    task = make_task("resnet18/16,googlenet/16", (16, 16))
    simulation = make_simulation("fedemoe", task, options=SMALL)
    assert simulation.note == "fedemoe needs one model for all clients: all run googlenet/16"
