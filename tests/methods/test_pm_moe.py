"""What makes PM-MoE itself."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support import (
    FEATURES,
    assert_close,
    assert_same_bits,
    finished,
    make_simulation,
    make_task,
    make_text_task,
    states,
)  # fmt: skip
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fedexperts
import fedexperts.methods
from fedexperts.api import load, resume, settings_for
from fedexperts.engine import ClientModel, Observer, Simulation
from fedexperts.engine.batches import scaled
from fedexperts.errors import MethodError, SavedStateError, SettingsError
from fedexperts.export import load_exported, save_model
from fedexperts.measure import History
from fedexperts.methods import Channel, Message, Model, registry, select
from fedexperts.methods.message import inside
from fedexperts.methods.pm_moe import PMMoE
from fedexperts.task import ClientSpec

TASK = make_task("cnn5/8")
CLIENTS = len(TASK.clients)
BASES = [kind.name for kind in registry().values() if kind.personal]
QUICK = {"rounds": 2, "gate_epochs": 2, "batch_size": 16, "lr": 0.05, "device": "cpu", "executor": "loop"}
POOL, WIDTH, SAMPLES = 5, FEATURES, 7


def made(**options: object) -> tuple[PMMoE, Model, torch.Tensor, dict[str, torch.Tensor]]:
    """Client 1 of five with a pool of heads, and some features."""
    torch.manual_seed(0)
    method = PMMoE(options=options)
    model = Model(method.parts(ClientSpec(id=1, model="cnn5/8", shape=(1, 8, 8), classes=4, samples=9, clients=POOL)))
    pool = {"pool.weight": torch.randn(POOL, 4, WIDTH), "pool.bias": torch.randn(POOL, 4)}
    pool["pool.weight"][1], pool["pool.bias"][1] = model.head.weight.detach(), model.head.bias.detach()
    return method, model.eval(), torch.randn(SAMPLES, WIDTH), pool | {"present.modules": torch.ones(POOL).bool()}


def by_hand(method: PMMoE, model: Model, z: torch.Tensor, pool: dict[str, torch.Tensor], sample: int) -> torch.Tensor:
    """Σ α^k h^k of one sample, step by step as Section 3 says it."""
    each = [pool["pool.weight"][k] @ z[sample] + pool["pool.bias"][k] for k in range(POOL)]
    alpha = model.gate.scores(z)[sample].softmax(0)
    confidence, temperature = {}, method.options.energy_temperature
    for k in range(POOL):
        v = each[k] * each[1] / (each[k].norm() * each[1].norm())
        confidence[k] = temperature * (v / temperature).exp().sum().log()
    noise = sorted((k for k in range(POOL) if k != 1), key=lambda k: confidence[k])[: int(method.options.denoise * 4)]
    left = sorted((k for k in range(POOL) if k not in noise), key=lambda k: -alpha[k])[: method.options.top]
    total = sum(alpha[k] for k in left) if method.options.renormalise else 1
    return sum(alpha[k] / total * each[k] for k in left)


@pytest.mark.parametrize("denoise", [0.0, 0.25, 0.6])
@pytest.mark.parametrize(("top", "renormalise"), [(None, False), (None, True), (1, False), (3, False), (3, True)])
def test_the_mixture_is_that_of_the_equations(denoise: float, top: int | None, renormalise: bool) -> None:
    method, model, z, pool = made(denoise=denoise, renormalise=renormalise, **({"top": top} if top else {}))
    answers = method.answers(model, z, pool)
    mixed = torch.einsum("mb,mbc->bc", answers.weights, answers.each)
    for sample in range(SAMPLES):
        torch.testing.assert_close(mixed[sample], by_hand(method, model, z, pool, sample))
    assert (answers.removed.sum(0) == int(denoise * (POOL - 1))).all()
    assert not answers.removed[1].any(), "the own module is never removed"


@pytest.mark.parametrize("top", [None, 2])
def test_weights_sum_to_1_also_where_the_gate_is_sure_of_what_is_removed(top: int | None) -> None:
    """So sure that its weights for all others are 0 in float32."""
    method, model, z, pool = made(denoise=0.6, renormalise=True, **({"top": top} if top else {}))
    first = method.answers(model, z[:1], pool).removed[:, 0].nonzero()[0, 0]
    with torch.no_grad():
        model.gate.scores[-1].bias[first] += 200
    answers = method.answers(model, z[:1], pool)
    assert answers.removed[first].all()
    torch.testing.assert_close(answers.weights.sum(0), torch.ones(1))
    torch.einsum("mb,mbc->bc", answers.weights, answers.each).square().sum().backward()
    steps = [tensor.grad for tensor in model.gate.parameters()]
    assert all(step.isfinite().all() for step in steps)
    assert any(step.any() for step in steps)


def test_the_temperature_is_that_of_the_confidence() -> None:
    """Far from one it changes who is noise: of small T the largest direction counts, of large T their sum."""
    removed = {}
    for temperature in (0.02, 1.0, 50.0):
        method, model, z, pool = made(denoise=0.5, energy_temperature=temperature)
        answers = method.answers(model, z, pool)
        mixed = torch.einsum("mb,mbc->bc", answers.weights, answers.each)
        for sample in range(SAMPLES):
            torch.testing.assert_close(mixed[sample], by_hand(method, model, z, pool, sample))
        removed[temperature] = answers.removed
    assert not torch.equal(removed[0.02], removed[50.0])


POOLED = {
    **dict.fromkeys(("fedper", "fedrep", "fedbabu", "gpfl"), "head"),
    **dict.fromkeys(("fedrod", "fedcp"), "personal_head"),
    **dict.fromkeys(("lg-fedavg", "fedgh"), "extractor"),
    "dbe": "bias",
}


def pooled(base: str) -> tuple[PMMoE, Model, dict[str, torch.Tensor]]:
    """Client 1 of five over some base, and a pool of which its own module is a part."""
    torch.manual_seed(0)
    method = PMMoE(options={"base": base, "denoise": 0.0})
    spec = ClientSpec(id=1, model="cnn5/8", shape=(1, 8, 8), classes=4, samples=9, clients=POOL)
    model = Model(method.parts(replace(spec, label_counts=(3, 3, 2, 1))))
    with torch.no_grad():
        for tensor in model.parameters():  # some begin with zeros
            tensor.add_(0.1 * torch.randn_like(tensor))
    own = inside(model.state_dict(), method.base.personal)
    others = {name: torch.stack([torch.randn_like(tensor) for _ in range(POOL)]) for name, tensor in own.items()}
    for name, tensor in own.items():
        others[name][1] = tensor
    pool = {f"pool.{name}": tensor for name, tensor in others.items()}
    return method, model.eval(), pool | {"present.modules": torch.ones(POOL).bool()}


def test_the_modules_of_the_paper_are_pooled() -> None:
    assert {kind.name: kind.personal for kind in registry().values() if kind.personal} == POOLED


@pytest.mark.parametrize("base", BASES)
def test_a_gate_that_trusts_one_module_is_the_base_with_that_module(base: str) -> None:
    """So the pool stands in the place of the personal module, and of no other."""
    method, model, pool = pooled(base)
    x = torch.randn(SAMPLES, 1, 8, 8)
    for trusted in (1, 3):
        with torch.no_grad():
            model.gate.scores[-1].bias.zero_()[trusted] = 1e4
        twin = deepcopy(model)
        tensors = {f"{POOLED[base]}.{name}": tensor[trusted] for name, tensor in inside(pool, "pool").items()}
        twin.load_state_dict(tensors, strict=False)
        expected = method.base.predict(twin, x, method._frozen(twin))
        torch.testing.assert_close(method.mixture(model, x, pool), expected)
        assert trusted == 1 or not torch.allclose(expected, method.base.predict(model, x, method._frozen(model)))


class Messages(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[int, Channel, int, Message]] = []

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        self.seen.append((round_number, channel, client, message))


def begun(
    base: str,
    watch: tuple[Observer, ...] = (),
    task: fedexperts.Task = TASK,
    executor: str = "loop",
    **options: object,
) -> Simulation:
    """A second phase after two rounds of the base."""
    first = finished(base, task, rounds=2, participation=1.0)
    values = {"rounds": 3, "participation": 1.0, "executor": executor, "options": {"base": base, **options}}
    second = make_simulation("pm-moe", task, observers=watch, **values)
    second.begin(first)
    return second


@pytest.mark.parametrize(
    ("base", "executor", "model"),
    [
        *((base, "loop", "cnn5/8") for base in BASES),
        *((base, "stacked", "cnn5/8") for base in ("fedrod", "lg-fedavg")),
        ("fedper", "loop", "resnet18/16"),  # whose BatchNorm has statistics
        *(("lg-fedavg", executor, "resnet18/16") for executor in ("loop", "stacked")),  # they are in the pool
    ],
)
def test_nothing_but_the_gate_moves(base: str, executor: str, model: str) -> None:
    second = begun(base, task=make_task(model), executor=executor)
    before = [second.client_state(client) for client in range(CLIENTS)]
    second.step()
    pool = {name: tensor.clone() for name, tensor in second.server.items() if not name.startswith("seen.")}
    own = [inside(state, POOLED[base]) for state in before]
    assert_same_bits(inside(pool, "pool"), {name: torch.stack([each[name] for each in own]) for name in own[0]})
    second.run()
    assert_same_bits({name: second.server[name] for name in pool}, pool)
    for client in range(CLIENTS):
        after = second.client_state(client)
        theirs = set(second.method.base.owners)  # type: ignore[attr-defined]
        assert_same_bits(select(after, theirs), select(before[client], theirs))
        assert any(not torch.equal(after[n], before[client][n]) for n in after if n.startswith("gate.scores."))


@pytest.mark.parametrize("base", ["fedbabu", "gpfl", "fedcp", "dbe"])
def test_the_first_round_is_the_base_as_it_was_left(base: str) -> None:
    first = finished(base, TASK, rounds=2, participation=1.0)
    second = make_simulation("pm-moe", TASK, rounds=3, participation=1.0, options={"base": base})
    second.begin(first)
    second.step()
    assert second.evaluate() == first.evaluate()
    second.step()
    assert any((second.client_state(client)["gate.learned"]) for client in range(CLIENTS))


def test_modules_go_up_once_and_the_pool_comes_down_once_as_one_for_all() -> None:
    messages = Messages()
    second = begun("fedper", (messages,))
    second.run()
    head = 4 * (FEATURES + 1)
    ups = [(r, c, m.parameters) for r, channel, c, m in messages.seen if channel is Channel.UP and m.tensors]
    assert sorted(ups) == [(1, client, head) for client in range(CLIENTS)]
    downs = [(r, m) for r, channel, _, m in messages.seen if channel is Channel.DOWN]
    assert [r for r, _ in downs] == [2] * CLIENTS
    assert {m.parameters for _, m in downs} == {CLIENTS * head + CLIENTS}
    assert len({m.tensors["pool.weight"].data_ptr() for _, m in downs}) == 1, "one pool, not a copy for each"
    later = second.method.send(second.server, second.specs[0].public, second.now(3))
    assert not later.tensors
    assert later.known["pool.weight"] is second.server["pool.weight"]


def test_a_module_that_is_kept_out_is_nobodys_but_its_owners() -> None:
    messages = Messages()
    second = begun("fedper", (messages,), keep_out=[2])
    second.run()
    assert 2 not in {c for _, channel, c, m in messages.seen if channel is Channel.UP and m.tensors}
    assert not second.server["pool.weight"][2].any()
    assert second.server["present.modules"].tolist() == [client != 2 for client in range(CLIENTS)]
    method = second.method
    assert isinstance(method, PMMoE)
    for client in (0, 2):
        model = Model(method.parts(second.specs[client])).double().eval()
        model.load_state_dict(second.client_state(client))
        z = torch.randn(5, FEATURES, dtype=torch.float64)
        weights = method.answers(model, z, method.heard(second.message_for(client))).weights
        assert (weights[2] > 0).all() == (client == 2), "its own client uses it, no other does"
        assert (weights > 0).sum() >= 4


def test_what_the_server_knows_of_kept_modules_all_the_same_is_said() -> None:
    """FedCP's clients send the mean of their own head and of one that the server knows."""
    messages = Messages()
    first = finished("fedcp", TASK, rounds=2, participation=1.0, observers=(messages,))
    of = {(r, channel, client): m.tensors for r, channel, client, m in messages.seen}
    for client in range(CLIENTS):
        head = inside(first.client_state(client), "personal_head")
        sent, came = (inside(of[2, channel, client], "head") for channel in (Channel.DOWN, Channel.UP))
        assert_close({name: 2 * came[name] - sent[name] for name in head}, head)
    kept = "2 of 6 clients kept their modules out of the pool"
    known = "from FedCP's messages the server can work out these modules all the same"
    for base, out, remarks in (("fedcp", [0, 2], [kept, known]), ("fedcp", [], []), ("fedrod", [0, 2], [kept])):
        second = begun(base, keep_out=out)
        second.step()
        assert list(second.method.remarks(second.server)) == remarks
    assert [kind.name for kind in registry().values() if kind.deducible] == ["fedcp"]


def test_who_keeps_out_is_known_before_anything_runs() -> None:
    for out, says in (
        (list(range(CLIENTS)), "no client gives its module to the pool; take some out of --keep-out"),
        ([1, CLIENTS], f"--keep-out {CLIENTS}: clients have the numbers 0 to {CLIENTS - 1}"),
    ):
        with pytest.raises(MethodError, match=says):
            make_simulation("pm-moe", TASK, options={"keep_out": out})


class Sizes(TorchDispatchMode):
    """How many values tensors have at most that are made within it."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return out


def test_a_stack_of_clients_has_one_pool() -> None:
    """Neither a step nor a prediction makes anything that is as large as a pool for each client would be.

    Whole extractors are pooled: a pool for each of twelve clients would be twelve times as large as all their models.
    """
    task = make_task("cnn5/8", sizes=(4,) * 12)
    second = begun("lg-fedavg", task=task, executor="stacked")
    second.step()
    pool = {name: tensor for name, tensor in second.server.items() if name.startswith("pool.")}
    now = second.now(2)
    [[cohort]] = second.fleet.waves(second.sample(2))
    job = second._job(cohort, now)
    assert job.received.common == {*pool, "present.modules"}
    with Sizes() as made:
        second.executor.train([job])
        second.evaluate()
    assert 0 < made.largest < 12 * max(tensor.numel() for tensor in pool.values())


def test_the_gate_has_its_own_rate() -> None:
    moved = {}
    for rate in (1e-9, 0.1):
        second = begun("fedper", gate_lr=rate)
        before = second.client_state(0)
        second.run()
        after = second.client_state(0)
        moved[rate] = max((after[n] - before[n]).abs().max() for n in after if n.startswith("gate.scores."))
    assert moved[1e-9] < 1e-7
    assert moved[0.1] > 1e-4


def test_who_does_not_choose_the_mixture_goes_on_without_it() -> None:
    result = fedexperts.run("pm-moe", TASK, **QUICK)
    samples, number = TASK.dataset.inputs[:9], 2
    state = result.simulation.client_state(number)
    simulation = result.simulation
    base = simulation.method.base  # type: ignore[attr-defined]
    for validation, mixes in (
        ({1: 0.5, 2: 0.9, 3: 0.5}, False),
        ({1: 0.5, 2: 0.2, 3: 0.6}, True),
        ({1: 0.5}, False),
        ({}, False),
        ({2: 0.2, 3: 0.6}, False),  # both the mixture's: of the base alone nothing is known
    ):
        model = ClientModel.of(simulation, number, validation)
        assert bool(model.tensors["gate.learned"]) == mixes
        plain = Model(base.parts(simulation.specs[number])).eval()
        plain.load_state_dict({n: t for n, t in state.items() if not n.startswith("gate.")})
        alone = base.predict(plain, scaled(torch.from_numpy(samples), torch.float32), {}).softmax(1)
        assert np.allclose(model.predict(samples), alone.detach().numpy(), atol=1e-6) != mixes


@pytest.mark.parametrize("mixes", [False, True])
def test_only_who_mixes_takes_everybodys_modules_along(mixes: bool, tmp_path: Path) -> None:
    """And an exported model without them predicts as it did in its run."""
    simulation = begun("fedper")
    simulation.run()
    model = ClientModel.of(simulation, 2, {1: 0.5, 3: 0.6 if mixes else 0.5})
    folder = save_model(model, tmp_path / "model", {"last": 0.5}, {})
    names = set(load_file(folder / "model.safetensors"))
    assert {name for name in names if name.startswith("received.")} == (
        {f"received.{name}" for name in simulation.server if not name.startswith("seen.")} if mixes else set()
    )
    samples = TASK.dataset.inputs[:9]
    expected = model.predict(samples)
    assert np.array_equal(load_exported(folder).predict(samples), expected)
    program = torch.export.load(folder / "model.pt2").module()
    np.testing.assert_allclose(program(torch.from_numpy(samples)), expected, rtol=1e-4, atol=1e-6)


def test_a_model_is_chosen_by_its_clients_own_figures(tmp_path: Path) -> None:
    """Those of the run as it ends, and as it is loaded, rounds that were not evaluated left out."""
    result = fedexperts.run("pm-moe", TASK, out=tmp_path / "run", **QUICK | {"gate_epochs": 3, "evaluate_every": 2})
    for known in (result, load(tmp_path / "run", task=TASK)):
        for number, name in enumerate(TASK.client_names):
            rows = [row for row in known.history if row["client"] == number and row["test_samples"] is not None]
            assert [row["round"] for row in rows] == [1, 2, 4]
            gained = rows[-1]["validation_accuracy"] > rows[0]["validation_accuracy"]  # type: ignore[operator]
            assert bool(known.model(name).tensors["gate.learned"]) == gained


def test_a_run_is_judged_by_its_mixture_and_not_by_the_base_that_it_began_with() -> None:
    result = fedexperts.run("pm-moe", TASK, **QUICK)
    assert result.record.curve.rounds[0] == 1
    assert min(figure.round for figure in result.figures.values()) > 1
    assert min(figure.round for figure in result.record.figures_by(samples=True).values()) > 1


def test_words_are_seen_through_the_own_extractor() -> None:
    texts = make_text_task("fasttext")
    second = begun("lg-fedavg", task=texts)
    assert second.client_state(0)["gate.scores.1.weight"].shape == (128, 32)
    second.run()


def test_a_tenth_base_needs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tenth.py").write_text(
        "from fedexperts.methods.fedper import FedPer\n"
        "class Tenth(FedPer):\n"
        "    name = 'tenth'\n"
        "    personal = 'head'\n"
        "    def predict(self, model, x, received):\n"
        "        return 2 * model.head(model.extractor(x).relu())\n"
    )
    monkeypatch.setattr(fedexperts.methods, "__path__", [*fedexperts.methods.__path__, str(tmp_path)])
    registry.cache_clear()
    try:
        second = begun("tenth", denoise=0.0)
        second.run()
        assert second.server["pool.weight"].shape == (CLIENTS, 4, FEATURES)
        model = Model(second.method.parts(second.specs[0])).double().eval()
        model.load_state_dict(second.client_state(0))
        x = second.data.x(torch.from_numpy(TASK.clients[0].test))
        seen = model.extractor(x).relu()
        shares = model.gate.scores(seen).softmax(1)
        heads = zip(second.server["pool.weight"], second.server["pool.bias"], strict=True)
        said = torch.stack([2 * (seen @ weight.T + bias) for weight, bias in heads], dim=1)
        expected = torch.einsum("bm,bmc->bc", shares, said)
        torch.testing.assert_close(second.method.predict(model, x, dict(second.server)), expected)
    finally:
        registry.cache_clear()


# --- two phases, from the outside


def test_both_phases_in_one_run_equal_two_runs(tmp_path: Path) -> None:
    at_once = fedexperts.run("pm-moe", TASK, base="fedrep", head_epochs=1, out=tmp_path / "both", **QUICK)
    assert at_once.before is not None
    assert at_once.before.settings.method == "fedrep"
    assert (at_once.before.settings.rounds, at_once.record.settings.rounds) == (2, 3)
    assert at_once.before.settings.options == {"head_epochs": 1}
    settings = {name: value for name, value in QUICK.items() if name != "gate_epochs"}
    fedexperts.run("fedrep", TASK, head_epochs=1, out=tmp_path / "first", **settings)
    values = settings_for("pm-moe", {"from": tmp_path / "first", "gate_epochs": 2, "device": "cpu", "executor": "loop"})
    second = fedexperts.api.execute(values, TASK)
    assert_same_bits(states(second.simulation), states(at_once.simulation))
    assert second.record.rows == at_once.record.rows
    loaded = load(tmp_path / "both", task=TASK)
    assert loaded.before is not None
    assert loaded.before.rows == at_once.before.rows


@pytest.mark.parametrize("when", [("fedper", 1), ("pm-moe", 2)])
def test_a_run_stopped_in_either_phase_goes_on(tmp_path: Path, when: tuple[str, int]) -> None:
    values = QUICK | {"base": "fedper", "checkpoint_every": 1}
    whole = fedexperts.run("pm-moe", TASK, out=tmp_path / "whole", **values)

    class Stop(Observer):
        method = ""

        def started(self, simulation: Simulation) -> None:
            self.method = simulation.method.name

        def ended(self, round_number: int, losses: object) -> None:
            if (self.method, round_number) == when:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedexperts.run("pm-moe", TASK, out=tmp_path / "cut", observers=[Stop()], **values)
    again = resume(tmp_path / "cut", task=TASK)
    assert_same_bits(states(again.simulation), states(whole.simulation))
    assert again.before is not None
    assert again.record.rows == whole.record.rows


def test_what_cannot_be_a_second_phase_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="leaves the gate nothing to learn"):
        settings_for("pm-moe", {"top": 1, "renormalise": True})
    for odd in ("abc", "2.5", None):
        with pytest.raises(SettingsError, match="setting 'gate_epochs' cannot be"):
            settings_for("pm-moe", {"base": "fedper", "gate_epochs": odd})
    with pytest.raises(MethodError, match="'fedavg' names no personal module that pm-moe could pool; these do: dbe, "):
        settings_for("pm-moe", {"base": "fedavg"})
    fedexperts.run("fedper", make_task(), out=tmp_path / "run", rounds=1, device="cpu")
    with pytest.raises(SettingsError, match="rounds: the first phase is over"):
        settings_for("pm-moe", {"from": tmp_path / "run", "rounds": 3})
    with pytest.raises(SettingsError, match="run is a run of fedper, not of fedrep"):
        settings_for("pm-moe", {"from": tmp_path / "run", "base": "fedrep"})
    with pytest.raises(SettingsError, match="clients: not as in"):
        settings_for("pm-moe", {"from": tmp_path / "run", "clients": 3})
    other = make_simulation("pm-moe", make_task("cnn5/8", (20, 20, 20)), rounds=2)
    with pytest.raises(SavedStateError, match="has other data, or another split"):
        other.begin(finished("fedper", TASK, rounds=1))
    with pytest.raises(SavedStateError, match=r"client 0 cannot go on .* personal_head.bias.* would not fit"):
        make_simulation("pm-moe", TASK, rounds=2, options={"base": "dbe"}).begin(finished("fedrod", TASK, rounds=1))


def test_the_history_has_the_base_in_its_first_row() -> None:
    history = History(None)
    second = begun("fedper", (history,))
    second.run()
    assert {row["round"] for row in history.rows} == {1, 2, 3}
