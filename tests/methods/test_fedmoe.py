"""What makes FedMoE itself."""

import pytest
import torch
from support import assert_close, assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.config import TrainSettings
from fedexperts.engine import Observer
from fedexperts.errors import MethodError, SettingsError
from fedexperts.methods import Message, Model, Reply, Round, State, select
from fedexperts.methods.fedmoe import FedMoE
from fedexperts.methods.message import Channel
from fedexperts.models import build
from fedexperts.task import ClientSpec

TASK = make_task("cnn5,cnn4")
NOW = Round(1, 10, seed=0)
SPEC = ClientSpec(id=0, model="cnn1", shape=(3, 32, 32), classes=10, samples=100)


def test_only_the_small_extractor_travels() -> None:
    sent: list[Message] = []

    class Keep(Observer):
        def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
            sent.append(message)

    finished("fedmoe", TASK, observers=(Keep(),), rounds=1, precision="float32")
    small = build("cnn5", TASK.shape, 4)["extractor"].state_dict()
    assert len(sent) == 2 * 4  # four of six clients are sampled
    for message in sent:
        assert set(message.tensors) == {f"global_expert.{name}" for name in small}
        assert message.payload_bytes == sum(4 * tensor.numel() for tensor in small.values())


def test_the_prediction_mixes_both_experts_by_the_gate() -> None:
    method = FedMoE()
    model = Model(method.parts(SPEC)).eval()
    x = torch.randn(8, 3, 32, 32)
    weights = model.gate(x)
    assert torch.allclose(weights.sum(1), torch.ones(8))
    assert weights[:, 0].std() > 0
    mixed = torch.stack(
        [w[0] * g + w[1] * f for w, g, f in zip(weights, model.global_expert(x), model.local_expert(x), strict=True)]
    )
    assert torch.allclose(method.predict(model, x, {}), model.head(mixed), atol=1e-6)


def test_with_all_weight_on_the_local_expert_it_is_standalone() -> None:
    moe = finished("fedmoe", TASK, options={"gate_fixed": 0.0})
    alone = finished("standalone", TASK)
    for client in range(6):
        state = moe.client_state(client)
        own = {name.replace("local_expert.", "extractor."): t for name, t in state.items()}
        assert_same_bits({name: own[name] for name in alone.client_state(client)}, alone.client_state(client))


def test_with_all_weight_on_the_global_expert_and_equal_heads_it_is_fedper() -> None:
    class SameStart(FedMoE):
        """The server's first global expert is the one that FedPer would have."""

        def start(self, model: Model) -> State:
            own = select(model.state_dict(), {"local_expert"})
            return {name.replace("local_expert.", "global_expert."): tensor for name, tensor in own.items()}

    task = make_task("cnn5")
    moe = finished(SameStart, task, options={"gate_fixed": 1.0})
    per = finished("fedper", task)
    for client in range(6):
        state = moe.client_state(client)
        used = {name.replace("global_expert.", "extractor."): t for name, t in state.items()}
        assert_same_bits({name: used[name] for name in per.client_state(client)}, per.client_state(client))
    assert_same_bits({n.replace("global_expert.", "extractor."): t for n, t in moe.server.items()}, per.server)


def test_the_gate_may_read_features_and_go_without_norms() -> None:
    method = FedMoE(options={"gate_input": "features", "gate_norms": "none"})
    model = Model(method.parts(SPEC))
    assert {name for name, _ in model.gate.named_parameters()} == {"2.weight", "2.bias", "5.weight", "5.bias"}
    x = torch.randn(8, 3, 32, 32)
    features = torch.cat([model.global_expert(x), model.local_expert(x)], dim=1)
    assert torch.equal(method.weigh(model, x, {}), model.gate(features))
    inner = Model(FedMoE(options={"gate_norms": "inner"}).parts(SPEC)).gate
    assert [type(layer).__name__ for layer in inner].count("BatchNorm1d") == 1


def test_the_server_takes_the_mean_by_samples() -> None:
    replies = [
        Reply(k, Message({"global_expert.w": torch.tensor([value])}, {"samples": n}))
        for k, (value, n) in enumerate([(0.0, 1), (8.0, 3)])
    ]
    assert FedMoE().combine({}, replies, NOW)["global_expert.w"] == 6.0


def test_the_gate_has_its_own_learning_rate() -> None:
    train = TrainSettings.check({"lr": 0.05})
    assert FedMoE(train).stages(NOW)[0].rates == {}
    assert FedMoE(train, {"gate_lr": 0.5}).stages(NOW)[0].rates == {"gate": 0.5}
    quick = states(finished("fedmoe", TASK, options={"gate_lr": 0.5}))
    same = states(finished("fedmoe", TASK, options={"gate_lr": 0.05}))
    assert_close(same, states(finished("fedmoe", TASK)))
    assert not torch.allclose(quick["0/gate.2.weight"], same["0/gate.2.weight"])


def test_gates_may_differ_between_clients() -> None:
    simulation = finished("fedmoe", TASK, options={"gate_width": (4, 8, 16)}, executor="stacked")
    widths = [len(simulation.client_state(k)["gate.2.bias"]) for k in range(6)]
    assert widths == [4, 8, 16, 4, 8, 16]


def test_own_extractor_in_evaluation() -> None:
    # One client at a time: what a client has of its own must come back from the store.
    simulation = make_simulation("fedmoe", TASK, options={"evaluate_with": "own"}, participation=1.0, group_size=1)
    simulation.step()
    own = [simulation.client_state(k)["global_expert.fc1.weight"] for k in range(6)]
    assert not torch.equal(own[0], own[1])
    assert not torch.equal(own[0], simulation.server["global_expert.fc1.weight"])
    assert all(torch.equal(own[k], simulation.fleet.kept(k)["global_expert.fc1.weight"]) for k in range(6))
    aggregated = make_simulation("fedmoe", TASK, participation=1.0)
    aggregated.step()
    assert torch.equal(
        aggregated.client_state(0)["global_expert.fc1.weight"], aggregated.server["global_expert.fc1.weight"]
    )
    # How clients are evaluated does not change how they train.
    assert_close(simulation.server, aggregated.server)


def test_experts_of_different_width_are_refused_with_the_client() -> None:
    with pytest.raises(MethodError, match=r"client 0's cnn-pm ends in 512 features and the shared cnn5 in 500"):
        make_simulation("fedmoe", make_task("cnn-pm,cnn5"))


def test_the_global_experts_model_is_a_choice() -> None:
    simulation = finished("fedmoe", make_task("cnn-da"), options={"shared_model": "cnn-da"}, rounds=1)
    assert simulation.server["global_expert.fc1.weight"].shape == (120, 64)
    own = simulation.client_state(0)
    assert own["local_expert.fc1.weight"].shape == own["global_expert.fc1.weight"].shape
    with pytest.raises(SettingsError, match="unknown model 'cnn-dd'; did you mean 'cnn-da'"):
        FedMoE(options={"shared_model": "cnn-dd"})


def test_options_are_checked() -> None:
    with pytest.raises(SettingsError, match="unknown setting 'gate_with'; did you mean 'gate_width'"):
        FedMoE(options={"gate_with": 3})
    with pytest.raises(SettingsError, match="gate_lr"):
        FedMoE(options={"gate_lr": -1})
