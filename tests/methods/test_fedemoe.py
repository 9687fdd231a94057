"""What makes FedEMoE itself; test_growth.py has the tree alone."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support import assert_same_bits, finished, make_simulation, make_task, states
from torch.utils.flop_counter import FlopCounterMode

from fedexperts.engine import Job, Observer, Simulation
from fedexperts.errors import SettingsError
from fedexperts.measure import History
from fedexperts.methods import Batch, Channel, Message, Model, Reply, Round, State, select
from fedexperts.methods.evolution import LOG, Change, changes
from fedexperts.methods.fedemoe import GROUPS, FedEMoE
from fedexperts.methods.growth import PART, Tree, expert, health
from fedexperts.task import ClientSpec

TASK = make_task("cnn5/8")
CLIENTS = len(TASK.clients)
NOW = Round(20, 100, seed=0, clients=6)
SMALL = {"width": 12, "hidden": 6}
IMAGES = ClientSpec(id=0, model="cnn5", shape=(3, 32, 32), classes=10, samples=100)


def test_experts_have_the_sizes_of_table_13() -> None:
    def size(module: torch.nn.Module) -> float:
        return sum(p.numel() for p in module.parameters()) / 1e6

    parts = [FedEMoE(options={"groups": [group]}).parts(IMAGES) for group in GROUPS]
    assert [len(part["experts"]) for part in parts] == [4, 4, 5, 4, 2]  # type: ignore[arg-type]
    third = list(parts[2]["experts"].children())
    assert [round(size(third[kind]), 2) for kind in (0, 1, 2)] == [0.85, 1.05, 2.01]  # the paper: 0.85, 1.07, 2.01
    assert [part["gate"].top for part in parts] == [4, 3, 4, 3, 1]


def test_groups_are_those_of_table_12() -> None:
    assert GROUPS == {
        1: ((1, 1, 1, 2), 4), 2: ((1, 1, 2, 3), 3), 3: ((1, 2, 3, 3, 3), 4), 4: ((2, 2, 3, 3), 3), 5: ((2, 2), 1),
    }  # fmt: skip


def test_settings_begin_as_in_appendix_e() -> None:
    begins = FedEMoE().options
    assert (begins.scale_every, begins.threshold, begins.smoothing, begins.energy) == (20, 0.8, 0.07, 0.99)
    assert (begins.tail_share, begins.exchange_samples, begins.temperature) == (0.9, 64, 2.0)
    assert (begins.branches, begins.active) == (3, 2)


@pytest.mark.parametrize("group", GROUPS)
def test_a_sample_uses_k_experts_and_the_output_is_their_weighted_sum(group: int) -> None:
    method = FedEMoE(options=SMALL | {"groups": [group]})
    torch.manual_seed(2)
    model = Model(method.parts(IMAGES)).double().eval()
    x = torch.randn(6, 3, 32, 32, dtype=torch.float64)
    features, (kinds, top) = model.extractor(x), GROUPS[group]
    weights, scores = method.weigh(model, x, {}), model.gate.scores(features.flatten(1)).softmax(1)
    assert (weights > 0).sum(1).tolist() == [top] * 6
    experts = [*model.experts, model.shared_expert]
    assert len(experts) == len(kinds) + 1
    mixed = method.represent(model, x, {})
    for sample in range(6):
        best = scores[sample].topk(top).indices
        shares = scores[sample][best] / (scores[sample][best].sum() if top > 1 else 1)
        expected = sum(share * experts[e](features)[sample] for share, e in zip(shares, best, strict=True))
        torch.testing.assert_close(mixed[sample], expected)


def test_a_gate_that_chooses_one_expert_learns_which() -> None:
    """Weights that sum to 1 are 1 where there is one: no gradient would reach the gate, or a router."""
    method = FedEMoE(options=SMALL | {"groups": [5], "active": 1, "private": True})
    torch.manual_seed(2)
    model = Model(method.parts(IMAGES)).double()
    batch = Batch(torch.randn(16, 3, 32, 32, dtype=torch.float64), torch.arange(16) % 10)
    method.loss(model, batch, {}).backward()
    assert model.gate.scores.weight.grad.abs().max() > 1e-5
    said = model.shared_expert(model.extractor(batch.x)).square().sum()
    [gradient] = torch.autograd.grad(said, [model.shared_expert.routers[0].weight])
    assert gradient.abs().max() > 1e-5


@pytest.mark.parametrize("group", GROUPS)
def test_private_experts_and_the_shared_one_work_for_those_who_use_them_only(group: int) -> None:
    method, (kinds, top) = FedEMoE(options=SMALL | {"groups": [group]}), GROUPS[group]
    torch.manual_seed(2)
    model = Model(method.parts(IMAGES)).eval()
    x = torch.randn(12, 3, 32, 32)
    seen: list[int] = []
    for each in (*model.experts, *model.shared_expert.experts):
        each.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    weights = method.weigh(model, x, {})
    method.represent(model, x, {})
    asked = int((weights[:, -1] > 0).sum())
    assert sum(seen) == 12 * top - asked + 2 * asked, f"K of {len(kinds) + 1}, and two sub-experts"


@pytest.mark.parametrize(("exchange", "off"), [("none", 0.001), ("before", 0.02), ("after", 0.02)])
def test_flops_are_those_of_the_experts_that_samples_used(
    exchange: str, off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the training really does is counted beside. It is a little less: where no sample of a batch asks SE, it
    goes no way back through the routers; an exchange that teaches SE needs no gradient of what SE reads; and where
    SE teaches, a sample may use fewer sub-experts than a full tree would let it.
    """
    history, counted = History(None), list[int]()
    options = {"width": 64, "hidden": 48, "scale_every": 1, "limit": 5, "threshold": 0.0, "exchange": exchange}
    simulation = make_simulation(
        "fedemoe", TASK, rounds=4, participation=0.5, options=options, observers=(history,), lr=0.2
    )
    train = simulation.executor.train

    def count(jobs: Sequence[Job]) -> None:
        with FlopCounterMode(display=False) as counter:
            train(jobs)
        counted.append(counter.get_total_flops())

    monkeypatch.setattr(simulation.executor, "train", count)
    simulation.run()
    rounds = [sum(row["flops"] or 0 for row in history.rows if row["round"] == number) for number in range(1, 5)]
    assert rounds == pytest.approx(counted, rel=off)
    assert len(Tree.of(simulation.server).paths) == 5


def test_flops_follow_the_tree() -> None:
    options = {"width": 64, "hidden": 48, "scale_every": 1, "tail_limit": 1.0, "threshold": 0.0, "groups": [1]}
    history = History(None)
    finished("fedemoe", TASK, rounds=3, participation=1.0, options=options, observers=(history,))
    flops = {row["round"]: row["flops"] for row in history.rows if row["client"] == 0}
    assert flops[1] < flops[2]


def test_who_uses_an_expert_is_counted_in_the_last_training() -> None:
    """Eq. 4: of one pass over the data, not of all since the beginning."""
    simulation = make_simulation("fedemoe", TASK, rounds=3, participation=1.0, options=SMALL | {"groups": [2]})
    for _ in range(2):
        simulation.step()
        gate = {n: t for n, t in simulation.client_state(0).items() if n.startswith("gate.")}
        assert not gate["gate.uses"].any()
        steps = -(-simulation.specs[0].samples // 16)
        assert gate["gate.last"].sum() == steps * 16 * 3, "three experts for each sample of the round"
    gate = Model(simulation.method.parts(simulation.specs[0])).gate
    gate.last.copy_(torch.tensor([6.0, 2.0, 0.0, 0.0, 2.0]))
    torch.testing.assert_close(gate.frequencies, torch.tensor([0.6, 0.2, 0.0, 0.0]))
    gate.uses.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0]))
    torch.testing.assert_close(gate.frequencies, torch.tensor([0.5, 0.0, 0.0, 0.0]))


def test_the_exchange_may_have_a_rate_of_its_own() -> None:
    *exchange, training = FedEMoE(options=SMALL | {"exchange_lr": 0.0005}).stages(NOW)
    assert [stage.rates for stage in exchange] == [{"shared_expert": 0.0005}, {"experts": 0.0005}]
    assert not training.rates


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match="a sample cannot use 5 of 3 branches"):
        FedEMoE(options={"active": 5})


def test_each_side_fits_what_the_other_said_before() -> None:
    method = FedEMoE(options=SMALL)
    first, second, last = method.stages(NOW)
    assert (first.parts, second.parts) == (("shared_expert",), ("experts",))
    assert first.samples == second.samples == 64
    assert first.copies == {"before": "shared_expert"}
    assert set(last.parts) == {"extractor", "experts", "shared_expert", "gate", "head"}
    after = FedEMoE(options=SMALL | {"exchange": "after"}).stages(NOW)
    assert [stage.parts for stage in after] == [last.parts, first.parts, second.parts]
    torch.manual_seed(1)
    model = Model(method.parts(IMAGES)).eval()
    model.before.load_state_dict(model.shared_expert.state_dict())
    batch = Batch(torch.randn(6, 3, 32, 32), torch.zeros(6, dtype=torch.int64))
    features = model.extractor(batch.x)
    private = [e(features) for e in model.experts]
    shared = model.shared_expert(features)
    target = sum(private) / 5  # all of five alike at first, the shared one among them
    one, other = ((t / 2).softmax(1) for t in (target, shared))
    torch.testing.assert_close(method.teach_shared(model, batch, {}), (one * (one / other).log()).sum(1).mean())
    total = sum((other * (other / (r / 2).softmax(1)).log()).sum(1).mean() for r in private)
    torch.testing.assert_close(method.teach_private(model, batch, {}), total)
    with torch.no_grad():  # the shared expert has learned meanwhile: the private ones fit what it said before
        for tensor in model.shared_expert.parameters():
            tensor.add_(0.3 * torch.randn_like(tensor))
    assert not torch.allclose(model.shared_expert(features), shared)
    torch.testing.assert_close(method.teach_private(model, batch, {}), total)


def reply(client: int, server: State, leaves: dict[int, float], value: float) -> Reply:
    """A client that used these sub-experts so often, and made all their weights one value."""
    tensors = {
        n: torch.full_like(t, value) for n, t in server.items() if n.startswith(("extractor.", f"{PART}.routers.0"))
    }
    for leaf in leaves:
        tensors |= {name: torch.full_like(t, value) for name, t in expert(server, leaf).items()}
    counts = torch.tensor([leaves.get(leaf, 0.0) for leaf in range(9)], dtype=torch.float64)
    return Reply(client, Message(tensors | {"uses.counts": counts}, {"samples": 10 * (client + 1)}))


def test_a_sub_expert_is_the_mean_over_those_who_used_it() -> None:
    simulation = make_simulation("fedemoe", TASK, options=SMALL)
    method, server = simulation.method, simulation.server
    replies = [reply(0, server, {0: 4.0, 1: 1.0}, 1.0), reply(1, server, {0: 7.0}, 4.0)]
    after = method.combine(server, replies, Round(1, 9, seed=0))
    assert after["extractor.0.weight"].unique().tolist() == pytest.approx([3.0])
    assert after[f"{PART}.routers.0.weight"].unique().tolist() == pytest.approx([3.0]), "all have it"
    assert after[f"{PART}.experts.0.0.weight"].unique().tolist() == pytest.approx([3.0])
    assert after[f"{PART}.experts.1.0.weight"].unique().tolist() == pytest.approx([1.0])
    assert_same_bits(expert(after, 2), expert(server, 2))
    assert after["uses.counts"].tolist() == pytest.approx([(10 * 4 + 20 * 7) / 30, 10 / 30] + [0] * 7)


def test_the_threshold_follows_equation_8() -> None:
    simulation = make_simulation("fedemoe", TASK, rounds=3, participation=1.0, options=SMALL | {"scale_every": 99})
    expected = 0.8
    for number in range(1, 4):
        simulation.step()
        rank = health(simulation.server, [0], 0.99, 0.9)[0].rank
        expected = expected if number == 1 else 0.07 * rank + 0.93 * expected
        assert simulation.server["growth.thresholds"][0].item() == pytest.approx(expected)


class Messages(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[int, Channel, int, Message]] = []

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        self.seen.append((round_number, channel, client, message))


def changes_of(simulation: Simulation) -> list[Change]:
    server, method = simulation.server, simulation.method
    assert isinstance(method, FedEMoE)
    return changes(server["growth.log"].tolist(), Tree.of(server), method.options)


GROWING = SMALL | {"scale_every": 2, "limit": 5}


def test_messages_follow_the_tree_and_every_change_has_its_reason() -> None:
    watch = Messages()
    simulation = make_simulation("fedemoe", TASK, rounds=4, participation=1.0, observers=(watch,), options=GROWING)
    simulation.run()
    down = {r: m for r, channel, _, m in watch.seen if channel is Channel.DOWN}
    leaves = {r: {n.split(".")[2] for n in m.tensors if ".experts." in n} for r, m in down.items()}
    assert [len(leaves[r]) for r in (1, 2, 3)] == [3, 3, 5]
    one = Message(expert(simulation.server, 0)).payload_bytes
    router = simulation.server[f"{PART}.routers.0.weight"].numel() * 8
    assert down[3].payload_bytes - down[2].payload_bytes == 2 * one + router
    for _, channel, _, message in watch.seen:
        if channel is Channel.UP:
            sent = {int(n.split(".")[2]) for n in message.tensors if ".experts." in n}
            assert sent == {leaf for leaf, uses in enumerate(message.tensors["uses.counts"].tolist()) if uses > 0}
    rows = simulation.server["growth.log"].tolist()
    assert [sum(row[0] == number for row in rows) for number in range(1, 5)] == [3, 3, 5, 5]
    seen = health(simulation.server, range(5), 0.99, 0.9)
    for number, leaf, rank, tail, threshold, _, change in rows[-5:]:
        assert (number, rank, tail, change) == (4, *map(pytest.approx, seen[int(leaf)]), 0)
        assert threshold == pytest.approx(simulation.server["growth.thresholds"][int(leaf)].item())
    [cause] = changes_of(simulation)
    above = {row[1]: row[2] - row[4] for row in rows if row[0] == 2}
    first = max(above, key=above.get)  # the one that is furthest above its threshold
    assert (cause.round, cause.leaf, cause.expanded) == (2, first, True)
    assert [row for row in rows if row[-1]] == [[2, first, cause.figure, rows[5][3], cause.limit, 0, 1]]
    assert cause.figure > cause.limit
    assert cause.tree == Tree.of(simulation.server)
    said = simulation.method.remarks(simulation.server)
    assert len(said) == 1
    assert said[0].startswith(f"round 2: sub-expert {first:.0f} expanded (effective rank ")
    assert f"the shared expert has now 5, {(5 * one + 2 * router) / 1e6:.2f} MB" in said[0]


def test_changes_are_the_trees_that_were_there_one_after_the_other() -> None:
    rules = {"tail_limit": 0.0, "tail_share": 0.5, "threshold": 0.0, "smoothing": 0}  # grow, shrink, grow …
    options = SMALL | {"scale_every": 1} | rules
    simulation = make_simulation("fedemoe", TASK, rounds=4, options=options)
    trees = []
    for _ in range(4):
        simulation.step()
        trees.append(Tree.of(simulation.server))
    assert [len(tree.paths) for tree in trees] == [9, 3, 9, 3]
    found = changes_of(simulation)
    assert [change.expanded for change in found] == ([True] * 3 + [False] * 3) * 2
    for number, tree in enumerate(trees, start=1):
        assert [change for change in found if change.round == number][-1].tree == tree
    tails = {leaf: tail for number, leaf, _, tail, *_ in simulation.server["growth.log"].tolist() if number == 2}
    shrunk = found[3]
    assert shrunk.figure == pytest.approx(sum(tails[leaf] for leaf in trees[0].family(1)) / 3)
    assert shrunk.limit == 0


@pytest.mark.parametrize("expands", ["above", "below"])
def test_both_readings_of_the_rule(expands: str) -> None:
    simulation = finished(
        "fedemoe", TASK, rounds=2, options=GROWING | {"expands": expands, "threshold": 2.0, "smoothing": 0}
    )
    grown = len(Tree.of(simulation.server).paths) > 3
    assert grown == (expands == "below"), "no rank is above 2"


def test_the_tree_changes_when_it_is_time_even_if_nobody_answered() -> None:
    simulation = make_simulation("fedemoe", TASK, options=SMALL | {"scale_every": 2, "limit": 5})
    method = simulation.method
    server = method.combine(simulation.server, [reply(0, simulation.server, {0: 4.0}, 1.0)], Round(1, 9, seed=0))
    after = method.combine(server, [], Round(2, 9, seed=0))
    assert len(Tree.of(server).paths) == 3
    assert len(Tree.of(after).paths) == 5
    assert {row[0] for row in after[LOG].tolist()} == {1, 2}
    assert_same_bits(select(after, {"extractor"}), select(server, {"extractor"}))


def test_a_resumed_run_grows_the_same_tree(tmp_path: Path) -> None:
    values = {"rounds": 4, "options": GROWING, "checkpoint_every": 1}
    whole = finished("fedemoe", TASK, **values)
    cut = make_simulation("fedemoe", TASK, folder=tmp_path, **values)
    cut.step()
    cut.checkpoint()
    assert len(Tree.of(cut.server).paths) == 3, "it has not grown yet"
    again = make_simulation("fedemoe", TASK, folder=tmp_path, **values)
    again.restore()
    again.run()
    assert_same_bits(states(again), states(whole))
    assert len(Tree.of(whole.server).paths) == 5


# --- ablations


def channels(simulation_options: dict, rounds: int = 2) -> tuple[Simulation, Messages]:
    watch = Messages()
    values = {"rounds": rounds, "participation": 1.0, "observers": (watch,)}
    return finished("fedemoe", TASK, options=SMALL | {"scale_every": 1} | simulation_options, **values), watch


def test_without_the_elastic_shared_expert_the_tree_and_its_traffic_stay() -> None:
    elastic, grown = channels({})
    fixed, watch = channels({"elastic": False})
    assert len(Tree.of(elastic.server).paths) == 9
    assert Tree.of(fixed.server).paths == {leaf: ((0, leaf),) for leaf in range(3)}
    down = [[m.payload_bytes for r, c, _, m in one.seen if (r, c) == (2, Channel.DOWN)] for one in (grown, watch)]
    assert min(down[0]) > max(down[1])
    assert fixed.method.note == "fedemoe: the shared expert is fixed at 3 sub-experts"
    assert not fixed.method.remarks(fixed.server)
    assert not len(fixed.server["growth.log"]), "nobody looks at the spectra"


def test_without_private_experts_the_shared_one_answers_alone() -> None:
    method = FedEMoE(options=SMALL | {"private": False})
    torch.manual_seed(1)
    model = Model(method.parts(IMAGES)).eval()
    x = torch.randn(6, 3, 32, 32)
    assert len(model.experts) == 0
    torch.testing.assert_close(method.represent(model, x, {}), model.shared_expert(model.extractor(x)))
    [only] = method.stages(NOW)
    assert set(only.parts) == {"extractor", "experts", "shared_expert", "gate", "head"}
    assert method.note == "fedemoe: without private experts nobody exchanges knowledge with the shared one"
    simulation, _ = channels({"private": False}, rounds=1)
    assert not [name for name in simulation.client_state(0) if name.startswith("experts.")]


def test_without_knowledge_exchange_there_is_one_stage_and_the_shared_expert_ends_elsewhere() -> None:
    quiet = FedEMoE(options=SMALL | {"exchange": "none"})
    assert [stage.loss for stage in quiet.stages(NOW)] == [quiet.loss]
    assert quiet.note == "fedemoe: no knowledge is exchanged"
    (with_it, _), (without, _) = (channels({"exchange": which}, rounds=1) for which in ("before", "none"))
    name = f"{PART}.experts.0.0.weight"
    assert not torch.equal(with_it.server[name], without.server[name])
    assert not FedEMoE().note


def test_one_plain_shared_expert_is_a_mixture_of_one() -> None:
    simulation, _ = channels({"branches": 1, "active": 1, "limit": 1, "elastic": False, "hidden": 18}, rounds=1)
    assert list(Tree.of(simulation.server).paths) == [0]
    with pytest.raises(SettingsError, match="limit 2 is less than the 3 branches"):
        FedEMoE(options={"limit": 2})


class Look(Observer):
    """Compares the shared expert with its copy, when a round's training is over."""

    def __init__(self) -> None:
        self.same: dict[str, list[bool]] = {}

    def trained(self, round_number: int, job: Job) -> None:
        for name, tensor in select(job.cohort.tensors, {PART}).items():
            equal = torch.equal(tensor, job.cohort.tensors[name.replace(PART, "before", 1)])
            self.same.setdefault(name, []).append(equal)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_the_copy_is_of_what_training_left_and_the_original_moves_on(executor: str) -> None:
    watch, options = Look(), SMALL | {"exchange": "after"}
    values = {"rounds": 1, "participation": 1.0, "executor": executor}
    simulation = make_simulation("fedemoe", TASK, observers=(watch,), options=options, **values)
    server = dict(simulation.server)
    simulation.step()
    assert not any(watch.same[f"{PART}.experts.0.0.weight"]), "it learned from the private experts after the copy"
    assert all(watch.same[f"{PART}.exists"])
    assert not torch.equal(server[f"{PART}.experts.0.0.weight"], simulation.server[f"{PART}.experts.0.0.weight"])
