"""What makes FedMoE-DA itself."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from support import assert_close, assert_same_bits, finished, make_simulation, make_task, states
from torch.nn import functional as F

from fedexperts.engine import Observer, Simulation
from fedexperts.errors import MethodError, SettingsError
from fedexperts.measure import History
from fedexperts.methods import Batch, Channel, Message, Model, Reply, Round, Trained, Want
from fedexperts.methods.fedmoe_da import FedMoEDA
from fedexperts.models import BlockExperts
from fedexperts.task import ClientSpec

TASK = make_task("cnn-da")
SPEC = ClientSpec(id=0, model="cnn-da", shape=(1, 8, 8), classes=4, samples=100)
X = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
EVERYBODY = {"participation": 1.0}


class Watch(Observer):
    """All messages, and who fetched what."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Channel, int, Message]] = []
        self.wants: list[tuple[int, int, Want]] = []

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        self.sent.append((round_number, channel, client, message))

    def fetched(self, round_number: int, client: int, want: Want) -> None:
        self.wants.append((round_number, client, want))


def model_of(options: dict[str, object] | None = None, spec: ClientSpec = SPEC) -> tuple[FedMoEDA, Model]:
    torch.manual_seed(1)
    method = FedMoEDA(options=options)
    return method, Model(method.parts(spec))


# --- routing


@pytest.mark.parametrize("top", [1, 2])
def test_each_sample_goes_through_its_best_experts_weighted_by_their_scores(top: int) -> None:
    method, model = model_of({"top": top})
    scores = method.weigh(model, X, {})
    torch.testing.assert_close(scores.sum(1), torch.ones(40))
    embedded = model.embedding(X)
    outputs = torch.stack([expert(embedded) for expert in model.experts.children()], dim=1)
    best = scores.argsort(dim=1, descending=True)[:, :top]
    expected = sum(scores[range(40), best[:, i], None] * outputs[range(40), best[:, i]] for i in range(top))
    torch.testing.assert_close(method.predict(model, X, {}), expected)


@pytest.mark.parametrize("top", [1, 3])
@pytest.mark.parametrize("everybody_to_one", [False, True])
def test_blocks_give_the_same_numbers_and_gradients(top: int, everybody_to_one: bool) -> None:
    method, model = model_of({"top": top})
    if everybody_to_one:
        model.gate.weight.data[0] += 10 * model.embedding(X).flatten(1).mean(0).detach()
    found = []
    for kind in (type(model.experts), BlockExperts):
        model.experts.__class__ = kind
        model.zero_grad()
        logits = method.predict(model, X, {})
        logits.square().sum().backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        found.append([logits.detach(), *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_an_expert_that_no_sample_chose_does_no_work() -> None:
    _, model = model_of()
    worked: list[int] = []
    for number, expert in enumerate(model.experts.children()):
        expert.register_forward_hook(lambda *_, number=number: worked.append(number))
    chosen = torch.tensor([[2]] * 39 + [[0]])
    model.experts(model.embedding(X), chosen, torch.ones(40, 1))
    assert worked == [0, 2]


def test_flops_of_the_experts_do_not_grow_with_their_number() -> None:
    def flops(experts: int) -> float:
        history = History()
        finished("fedmoe-da", TASK, observers=(history,), rounds=1, options={"experts": experts, "asked": 0})
        return sum(row["flops"] for row in history.rows)

    one, four = flops(1), flops(4)
    assert one < four < 1.1 * one  # the gate has four columns instead of one; the experts' work is the same


# --- the aggregation matrix


def trained(gate: torch.Tensor, client: int) -> Reply:
    own = {"gate.weight": gate, "embedding.conv1.weight": torch.full((2,), float(client))}
    spec = ClientSpec(client, "cnn-da", (1, 8, 8), 4, 100)
    return Reply(client, FedMoEDA().reply(Trained(spec, own, {}), Round(1, 10, seed=0)))


def test_the_matrix_names_the_most_similar_experts_of_all_clients() -> None:
    gates = [torch.randn(3, 7), torch.randn(2, 7), torch.randn(4, 7)]
    gates[1][0] = 5 * gates[0][2]  # the same direction, another length
    method = FedMoEDA(options={"asked": 2, "temperature": 0.5})
    start = {"embedding.conv1.weight": torch.zeros(2), "matrix.round": torch.tensor(0)}
    server = method.combine(start, [trained(gate, k) for k, gate in enumerate(gates)], Round(1, 10, seed=0))
    assert server["embedding.conv1.weight"].tolist() == [1, 1]  # the plain mean of 0, 1 and 2
    places, weights = server["places.0"][2].tolist(), server["weights.0"][2]
    assert places[:2] == [[0, 2], [1, 0]]
    proxies, owner = torch.cat(gates), [(k, j) for k, gate in enumerate(gates) for j in range(len(gate))]
    similar = F.cosine_similarity(proxies[2][None], proxies)
    best = similar.argsort(descending=True)[:3]
    assert {tuple(place) for place in places} == {owner[i] for i in best}
    torch.testing.assert_close(weights, (similar[best] / 0.5).softmax(0))
    assert [server[f"places.{k}"].shape for k in range(3)] == [(3, 3, 2), (2, 3, 2), (4, 3, 2)]


def test_an_expert_becomes_the_mean_that_its_row_says_and_lost_ones_leave_their_weight() -> None:
    method, model = model_of({"experts": 2, "asked": 2})
    own = model.state_dict()
    own["neighbours.places"] = torch.tensor([[[0, 0], [3, 1], [0, 1]], [[0, 1], [3, 1], [5, 0]]])
    own["neighbours.weights"] = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]])
    after = Trained(SPEC, own, {})
    wants = method.wants(after, Round(7, 10, seed=0))
    assert wants == [Want(3, "experts.1"), Want(5, "experts.0")]  # each once, nothing of its own
    theirs = {n: torch.randn_like(t) for n, t in own.items() if n.startswith("experts.")}
    fetched = {wants[0]: method.serve(theirs, wants[0])}  # client 5 cannot be reached
    adopted = method.adopt(after, fetched, Round(7, 10, seed=0))
    first, second, other = (source[name] for source, name in (
        (own, "experts.0.head.weight"), (own, "experts.1.head.weight"), (theirs, "experts.1.head.weight"),
    ))  # fmt: skip
    torch.testing.assert_close(adopted["experts.0.head.weight"], 0.5 * first + 0.3 * other + 0.2 * second)
    torch.testing.assert_close(adopted["experts.1.head.weight"], (0.6 * second + 0.3 * other) / 0.9)


# --- rounds


def test_nothing_is_fetched_before_the_first_matrix_and_gates_go_up_every_interval() -> None:
    watch = Watch()
    options = {"interval": 3, "asked": 2}
    finished("fedmoe-da", TASK, observers=(watch,), rounds=8, options=options, **EVERYBODY)
    assert {now for now, _, _ in watch.wants} == set(range(2, 9))
    with_gate = {now for now, channel, _, m in watch.sent if channel is Channel.UP and "gate.weight" in m.tensors}
    with_rows = {now for now, channel, _, m in watch.sent if channel is Channel.DOWN and "rows.places" in m.tensors}
    assert with_gate == {1, 4, 7}
    assert with_rows == {2, 5, 8}


def test_the_server_never_sees_an_expert_and_peers_see_nothing_else() -> None:
    watch = Watch()
    finished("fedmoe-da", TASK, observers=(watch,), rounds=4, **EVERYBODY)
    assert {channel for _, channel, _, _ in watch.sent} == set(Channel)
    for _, channel, _, message in watch.sent:
        experts = [name.startswith("experts.") for name in message.tensors]
        assert all(experts) if channel is Channel.PEER else not any(experts)


def test_traffic_is_what_the_paper_says() -> None:
    history, asked, interval, experts, rounds = History(), 3, 2, 4, 9
    options = {"asked": asked, "interval": interval, "experts": experts}
    simulation = finished("fedmoe-da", TASK, observers=(history,), rounds=rounds, options=options, **EVERYBODY)
    sizes = {name: tensor.numel() for name, tensor in simulation.client_state(0).items()}
    embedding = sum(size for name, size in sizes.items() if name.startswith("embedding."))
    expert = sum(size for name, size in sizes.items() if name.startswith("experts.0."))
    gate, rows = sizes["gate.weight"], 3 * experts * (asked + 1)  # client, expert and weight of each entry
    for row in history.rows:
        renews, renewed = row["round"] % interval == 1, row["round"] > 1 and (row["round"] - 1) % interval == 1
        assert row["up_parameters"] == embedding + gate * renews
        assert row["down_parameters"] == embedding + rows * renewed
        assert row["peer_parameters"] % expert == 0
        assert row["peer_parameters"] <= asked * experts * expert
    assert all((row["peer_parameters"] > 0) == (row["round"] > 1) for row in history.rows)


def test_everybody_adopts_from_experts_as_they_were_after_training() -> None:
    class BeforeExchange(Simulation):
        """Notes all experts between training and the exchange."""

        def passes(self, now: int, channel: Channel, client: object, message: Message) -> None:
            if channel is Channel.PEER and not self.before:
                everybody = range(len(self.specs))
                self.before = [{n: t.clone() for n, t in self.fleet.present(k).items()} for k in everybody]
            super().passes(now, channel, client, message)

    simulation = make_simulation("fedmoe-da", TASK, simulation=BeforeExchange, **EVERYBODY)
    simulation.before = []
    simulation.step()
    simulation.step()
    for client in range(6):
        own = simulation.before[client]
        places, weights = own["neighbours.places"], own["neighbours.weights"]
        expected = sum(
            weight * simulation.before[peer][f"experts.{expert}.head.weight"]
            for (peer, expert), weight in zip(places[1].tolist(), weights[1].tolist(), strict=True)
        )
        torch.testing.assert_close(simulation.client_state(client)["experts.1.head.weight"], expected)


def test_without_peers_experts_stay_the_clients_own() -> None:
    watch = Watch()
    alone = finished("fedmoe-da", TASK, observers=(watch,), options={"asked": 0}, **EVERYBODY)
    assert not watch.wants
    lost = finished("fedmoe-da", TASK, peer_drop=1.0, options={"asked": 0}, **EVERYBODY)
    assert_close(states(lost), states(alone))


def test_some_fetches_fail_as_often_as_asked() -> None:
    whole, half = Watch(), Watch()
    finished("fedmoe-da", TASK, observers=(whole,), rounds=5, **EVERYBODY)
    finished("fedmoe-da", TASK, observers=(half,), rounds=5, peer_drop=0.5, **EVERYBODY)
    assert 0.3 < len(half.wants) / len(whole.wants) < 0.7


def test_clients_may_have_different_numbers_of_experts() -> None:
    options = {"experts": (2, 3), "asked": 3}
    loop = finished("fedmoe-da", TASK, options=options, **EVERYBODY)
    assert [len(loop.client_state(k)["gate.weight"]) for k in range(6)] == [2, 3, 2, 3, 2, 3]
    assert_close(states(finished("fedmoe-da", TASK, options=options, executor="stacked", **EVERYBODY)), states(loop))


# --- a pre-trained embedding


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fedavg")
    finished("fedavg", TASK, folder=folder / "state")
    return folder


def saved_embedding(folder: Path) -> torch.Tensor:
    saved = safetensors.torch.load_file(next(folder.glob("state/server.*")))["extractor.conv1.weight"]
    return saved.float().double()  # models are made in float32


def test_a_frozen_embedding_stays_as_it_was_trained_and_never_travels(pretrained: Path) -> None:
    watch, history = Watch(), History()
    options = {"embedding": "frozen", "pretrained": pretrained, "interval": 2}
    simulation = finished("fedmoe-da", TASK, observers=(watch, history), rounds=5, options=options, **EVERYBODY)
    saved = saved_embedding(pretrained)
    for client in range(6):
        state = simulation.client_state(client)
        assert torch.equal(state["embedding.conv1.weight"], saved)
    assert not any(name.startswith("embedding.") for _, _, _, message in watch.sent for name in message.tensors)
    gate = simulation.client_state(0)["gate.weight"].numel()
    assert [row["up_parameters"] for row in history.rows if row["client"] == 0] == [gate, 0, gate, 0, gate]
    rows = 3 * 4 * 6
    assert [row["down_parameters"] for row in history.rows if row["client"] == 0] == [0, rows, 0, rows, 0]
    stacked = finished("fedmoe-da", TASK, rounds=5, options=options, executor="stacked", **EVERYBODY)
    assert_close(states(stacked), states(simulation))


def test_a_run_that_was_made_anew_is_read_anew(pretrained: Path, tmp_path: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "again")
    options = {"embedding": "frozen", "pretrained": tmp_path / "again"}
    first = make_simulation("fedmoe-da", TASK, options=options).client_state(0)
    [file] = (tmp_path / "again").glob("state/server.*.safetensors")
    doubled = {name: 2 * tensor for name, tensor in safetensors.torch.load_file(file).items()}
    os.utime(file, ns=(0, 0))
    safetensors.torch.save_file(doubled, file)
    second = make_simulation("fedmoe-da", TASK, options=options).client_state(0)
    assert torch.equal(second["embedding.conv1.weight"], 2 * first["embedding.conv1.weight"])


def test_a_tuned_embedding_begins_there_and_goes_on(pretrained: Path) -> None:
    options = {"embedding": "tuned", "pretrained": pretrained}
    simulation = make_simulation("fedmoe-da", TASK, options=options, **EVERYBODY)
    saved = saved_embedding(pretrained)
    assert torch.equal(simulation.server["embedding.conv1.weight"], saved)
    simulation.step()
    assert not torch.equal(simulation.server["embedding.conv1.weight"], saved)


def test_a_pre_trained_embedding_comes_from_somewhere(pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs --pretrained RUN"):
        FedMoEDA(options={"embedding": "frozen"})
    with pytest.raises(MethodError, match="is not the folder of a finished run; give --pretrained one of FedAvg's"):
        FedMoEDA(options={"embedding": "frozen", "pretrained": tmp_path}).parts(SPEC)
    with pytest.raises(MethodError, match=r"has no conv1.weight.* like the clients' model"):
        FedMoEDA(options={"embedding": "frozen", "pretrained": pretrained}).parts(replace(SPEC, model="cnn5"))


def test_more_experts_for_a_sample_than_there_are_is_an_error() -> None:
    with pytest.raises(MethodError, match="client 0 has 2 experts, but a sample uses top = 3"):
        make_simulation("fedmoe-da", TASK, options={"experts": 2, "top": 3})


# --- experts of different shapes

MIXED = make_task("cnn5/8,cnn3/8")
DISTIL = {"mixing": "distil", "experts": (2, 3), "asked": 3}


@pytest.fixture(scope="module")
def distilled() -> Simulation:
    return finished("fedmoe-da", MIXED, rounds=4, options=DISTIL, participation=0.8)


def test_experts_of_different_shapes_have_one_embedding_and_each_its_own_shape(distilled: Simulation) -> None:
    assert not distilled.note  # nobody has to run another model
    shapes = [distilled.client_state(k)["experts.0.fc1.weight"].shape for k in range(6)]
    assert shapes == [(62, 16), (125, 16)] * 3
    embeddings = [distilled.client_state(k)["embedding.conv1.weight"] for k in range(6)]
    assert all(torch.equal(embeddings[0], other) for other in embeddings)
    averaging = make_simulation("fedmoe-da", MIXED)
    assert "needs one model for all clients" in averaging.note


@pytest.mark.parametrize("values", [{"executor": "stacked"}, {"executor": "workers"}, {"group_size": 1}])
def test_distilling_together_equals_one_by_one(distilled: Simulation, values: dict[str, object]) -> None:
    other = finished("fedmoe-da", MIXED, rounds=4, options=DISTIL, participation=0.8, **values)
    assert_close(states(other), states(distilled))


def test_distilling_goes_on_as_if_it_had_never_stopped(distilled: Simulation, tmp_path: Path) -> None:
    values = {"rounds": 4, "options": DISTIL, "participation": 0.8, "folder": tmp_path, "checkpoint_every": 2}
    first = make_simulation("fedmoe-da", MIXED, **values)
    for _ in range(3):
        first.step()
        if first.round == 2:
            first.checkpoint()
    again = make_simulation("fedmoe-da", MIXED, **values)
    again.restore()
    again.run()
    assert_same_bits(states(again), states(distilled))


def asking(weights: list[float]) -> tuple[FedMoEDA, Model, Trained, dict[Want, Message], list[torch.Tensor]]:
    """A client with two experts of cnn5 that fetches one of cnn3: its state, what it fetches, what that says."""
    spec = replace(SPEC, model="cnn5", samples=32)
    method, model = model_of({"experts": 2, "asked": 1, "mixing": "distil", "distil_temperature": 3.0}, spec)
    other = Model(method.parts(replace(spec, model="cnn3")))
    own = model.state_dict()
    own["neighbours.places"] = torch.tensor([[[0, 0], [4, 1]], [[0, 1], [0, 1]]])
    own["neighbours.weights"] = torch.tensor([weights, [1.0, 0.0]])
    after = Trained(spec, own, {}, x=X[:32])
    [want] = method.wants(after, Round(2, 9, seed=0))
    fetched = {want: method.serve(other.state_dict(), want)}
    with torch.no_grad():
        embedded = model.embedding(X[:32])
        said = [getattr(network.experts, name)(embedded) for network, name in ((model, "0"), (other, "1"))]
    return method, model, after, fetched, said


def test_teachers_are_asked_about_own_samples_and_weighted_as_the_matrix_says() -> None:
    method, model, after, fetched, (own, others) = asking([0.75, 0.25])
    adopted = method.adopt(after, fetched, Round(2, 9, seed=0))
    assert {name.partition(".")[0] for name in adopted} == {"neighbours"}  # no expert is averaged
    expected = 0.75 * (own / 3).softmax(1) + 0.25 * (others / 3).softmax(1)
    torch.testing.assert_close(adopted["neighbours.answers"][0], expected)
    torch.testing.assert_close(adopted["neighbours.samples"], model.embedding(X[:32]))
    lost = method.adopt(after, {}, Round(2, 9, seed=0))
    torch.testing.assert_close(lost["neighbours.answers"][0], (own / 3).softmax(1))


def test_an_expert_learns_to_agree_with_its_teachers_and_only_where_there_are_any() -> None:
    method, model, after, fetched, (own, others) = asking([0.4, 0.6])
    empty = Batch(X[:0], torch.empty(0, dtype=torch.int64))
    assert method.disagreement(model, empty, {}) == 0  # nothing has been asked yet
    model.load_state_dict({**after.own, **method.adopt(after, fetched, Round(2, 9, seed=0))})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wanted = 0.4 * (own / 3).softmax(1) + 0.6 * (others / 3).softmax(1)
    apart = 9 * (wanted * (wanted.log() - (own / 3).log_softmax(1))).sum(1).mean()
    torch.testing.assert_close(method.disagreement(model, empty, {}), apart)
    optimizer = torch.optim.SGD(model.experts.parameters(), 0.05)
    for _ in range(20):
        optimizer.zero_grad()
        method.disagreement(model, empty, {}).backward()
        optimizer.step()
    assert method.disagreement(model, empty, {}) < apart / 4
    moved = {name for name, tensor in model.state_dict().items() if (tensor - before[name]).abs().max() > 1e-5}
    assert {name[: len("experts.0")] for name in moved} == {"experts.0"}  # expert 1 has only itself to agree with


def test_a_lesson_is_learnt_once_and_the_stage_is_there_when_it_can_be() -> None:
    method = FedMoEDA(options={"mixing": "distil"})
    assert [len(method.stages(Round(number, 9, seed=0))) for number in (1, 2, 3, 9)] == [1, 1, 2, 2]
    simulation = make_simulation("fedmoe-da", MIXED, options=DISTIL, **EVERYBODY)
    due = []
    for _ in range(3):
        simulation.step()
        due.append(simulation.client_state(0)["neighbours.due"].item())
    assert due == [0, 1, 1]
    [after] = [Trained(SPEC, simulation.client_state(0), {})]
    assert simulation.method.finish(after, Round(4, 9, seed=0))["neighbours.due"] == 0


def test_an_expert_of_no_known_model_cannot_be_asked() -> None:
    method, _, after, fetched, _ = asking([0.5, 0.5])
    [(want, message)] = fetched.items()
    odd = {name: tensor[..., :-1] for name, tensor in message.tensors.items()}
    with pytest.raises(MethodError, match="a fetched expert is of no known model"):
        method.adopt(after, {want: Message(odd)}, Round(2, 9, seed=0))
