"""A pool of modules and those who mix it: numbers worked out by hand, and real runs."""

import runpy
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedexperts
from fedexperts import analyses
from fedexperts.analyses import POOL, Pool
from fedexperts.config import Settings
from fedexperts.engine import scaled
from fedexperts.errors import MethodError, SavedStateError
from fedexperts.measure import COLUMNS, HISTORY, SUMMARY, Figure, Record
from fedexperts.methods import Model


def made_up(validation: list[list[float]], test: list[list[float]], rounds: list[int], method: str = "pm-moe"):
    """A run that was looked at in some rounds: rounds × clients."""
    rows = []
    for number, *scores in zip(rounds, validation, test, strict=True):
        for client, (chosen_by, reached) in enumerate(zip(*scores, strict=True)):
            row = dict.fromkeys(COLUMNS, 0) | {"round": number, "client": client, "test_samples": 10 * (client + 1)}
            rows.append(row | {"validation_accuracy": chosen_by, "test_accuracy": reached})
    settings = Settings.check({"method": method, "options": {"base": "fedrod"}, "clients": len(test[0])})
    return Record(settings, "PM-MoE", rows, np.ones((len(test[0]), 2)), ["a", "b"])


VALIDATION = [[0.9, 0.5, 0.5, 0.5], [0.5, 0.9, 0.5, 0.1], [0.5, 0.8, 0.6, 0.2]]
TEST = [[0.8, 0.4, 0.6, 0.5], [0.9, 0.9, 0.9, 0.9], [0.4, 0.7, 0.5, 0.7]]


# --- to use the mixture or not


def test_every_client_chooses_on_its_validation_data():
    found = analyses.mixture(made_up(VALIDATION, TEST, [1, 2, 3]))
    # Without choosing, round 1 is the best on validation data, 0.6; of the others it is round 3, 0.525 against 0.5.
    assert (found.base.round, found.everywhere.round, found.chosen.round) == (1, 3, 3)
    assert found.used.tolist() == [False, True, True, False]
    assert found.base.mean == pytest.approx(0.575)
    assert found.everywhere.mean == pytest.approx(0.575)
    assert found.chosen.clients == (0.8, 0.7, 0.5, 0.5)
    assert found.chosen.weighted == pytest.approx((0.8 * 10 + 0.7 * 20 + 0.5 * 30 + 0.5 * 40) / 100)
    assert found.gains.points.tolist() == [0, 30, -10, 0]
    assert found.gains.worse == 1
    assert found.gains_everywhere.points.tolist() == [-40, 30, -10, 20]


def test_the_choice_against_the_base_at_its_best():
    """The base's own run was best in round 5; its last one, 7, is where the second phase begins."""
    base_validation = [[0.1] * 4, [0.9, 0.85, 0.7, 0.5], VALIDATION[0]]
    base_test = [[0.1] * 4, [0.9, 0.8, 0.45, 0.55], TEST[0]]
    own = made_up(base_validation, base_test, [3, 5, 7], method="fedrod")
    record = made_up(VALIDATION, TEST, [1, 2, 3])
    assert analyses.mixture(record).selected is None
    found = analyses.mixture(replace(record, began_with=own))
    assert (found.base.round, found.selected.base.round) == (1, 5)
    assert found.selected.base == own.figures["selected"]
    # Chosen are 0.8 (base), 0.7 and 0.5 (mixture), 0.5 (base), with validation accuracies 0.9, 0.8, 0.6 and 0.5.
    assert found.selected.gains.points.tolist() == [-10, -10, 5, -5]
    assert not found.selected.favoured.any()
    assert (found.selected.gains.worse, found.selected.misled) == (3, 0)
    assert found.gains.points.tolist() == [0, 30, -10, 0]  # over the last round, as before
    lower = made_up([base_validation[0], [0.9, 0.79, 0.7, 0.5], VALIDATION[0]], base_test, [3, 5, 7], method="fedrod")
    assert analyses.mixture(replace(record, began_with=lower)).selected.misled == 1  # client 1
    small_or_large = [[0.9] * 3 + [0.1], [0.4] * 3 + [0.9], VALIDATION[0]]
    by_samples = made_up(small_or_large, base_test, [3, 5, 7], method="fedrod")
    rounds = [
        analyses.mixture(replace(record, began_with=by_samples), samples).selected.base.round
        for samples in (False, True)
    ]
    assert rounds == [3, 5]


def test_a_base_with_other_clients_is_not_held_against():
    few = made_up([[0.5] * 3], [[0.5] * 3], [1], method="fedrod")
    assert analyses.mixture(replace(made_up(VALIDATION, TEST, [1, 2, 3]), began_with=few)).selected is None


def test_a_base_that_did_not_end_where_the_run_began_is_another_one():
    record = made_up(VALIDATION, TEST, [1, 2, 3])

    def at_hand(last: list[float]) -> bool:
        base = made_up([[0.9] * 4, [0.5] * 4], [[0.9] * 4, last], [1, 2], method="fedrod")
        return analyses.mixture(replace(record, began_with=base)).selected is not None

    assert at_hand(TEST[0])
    assert at_hand([0.8, 0.4, 0.6, 0.5 + 0.002])  # 0.08 of 100 samples: rounding
    assert not at_hand([0.8, 0.4, 0.6, 0.5 + 0.003])
    assert not at_hand([0.9, 0.4, 0.6, 0.475])  # by samples as good, but not client by client
    assert not at_hand(TEST[1])
    began_late = replace(made_up(VALIDATION, TEST, [2, 3, 4]), began_with=made_up(VALIDATION, TEST, [1, 2, 3]))
    assert began_late.before is None


def test_as_good_is_no_reason_to_use_the_mixture():
    found = analyses.mixture(made_up([[0.5, 0.5]] * 2, [[0.1, 0.2], [0.9, 0.9]], [1, 2]))
    assert not found.used.any()
    assert found.chosen.clients == found.base.clients


def test_of_equally_good_rounds_it_is_the_last():
    assert analyses.mixture(made_up([[0.1], [0.5], [0.5]], [[0.1], [0.2], [0.3]], [1, 2, 3])).everywhere.round == 3


def test_the_round_is_the_best_by_clients_or_by_samples():
    # Clients have 10, 20, 30 and 40 samples. Round 2 is the better one for the small ones, round 3 for the large ones.
    validation = [[0.5] * 4, [0.9, 0.9, 0.4, 0.4], [0.3, 0.3, 0.9, 0.9]]
    record = made_up(validation, TEST, [1, 2, 3])
    by_clients, by_samples = (analyses.mixture(record, samples) for samples in (False, True))
    assert (by_clients.everywhere.round, by_samples.everywhere.round) == (2, 3)
    assert analyses.mixture(record).everywhere.round == 2
    assert by_samples.everywhere == record.figures_by(samples=True)["selected"]
    assert by_clients.used.tolist() == [True, True, False, False]
    assert by_samples.used.tolist() == [False, False, True, True]


def test_a_run_without_a_beginning_or_another_method_has_nothing_to_choose():
    assert analyses.mixture(made_up(VALIDATION, TEST, [2, 3, 4])) is None
    assert analyses.mixture(made_up(VALIDATION[:1], TEST[:1], [1])) is None
    assert analyses.mixture(made_up(VALIDATION, TEST, [1, 2, 3], method="fedmoe")) is None
    assert analyses.mixture(made_up(VALIDATION, TEST, [1, 2, 3], method="somebody-elses")) is None


def test_how_much_of_their_label_mix_clients_share():
    counts = np.array([[10, 0, 0], [5, 5, 0], [0, 1, 3]])
    # Between 0 and 1: 0.5, between 1 and 2: 0.25, between 0 and 2 nothing.
    np.testing.assert_allclose(analyses.overlap(counts), [0.25, 0.375, 0.125])
    np.testing.assert_allclose(analyses.overlap(counts[:1]), [0])


# --- Theorem 3.1


def two_by_two(**values: float) -> Pool:
    """Two clients with 500 test samples each and two modules, which are all alike; client 1 keeps its own."""
    alike = {field.name: np.full((2, 2), values.get(field.name, 0.0)) for field in fields(Pool)}
    for table in alike.values():
        table[0, 1] = np.nan
    return Pool(**alike | {"samples": np.where(np.isnan(alike["weight"]), np.nan, 500)})


def test_the_bound_of_the_theorem():
    whole = replace(two_by_two(), samples=np.full((2, 2), 500.0))
    half = {"right": 0.5, "weight": 0.5, "weight_right": 0.4}
    for name, value in (half | {"right_together": 0.375}).items():
        getattr(whole, name)[:] = value
    found = analyses.bound(whole)
    # Weight 0.8 where a module is right, 0.2 where it is not: α = 3, and (1 + 3)·0.5 / (1 + 3·(0.5 + 0.5/2)) = 2/3.25.
    assert (found.right, found.alpha, found.modules, found.samples) == (0.5, pytest.approx(3), 2, 1000)
    assert found.least == pytest.approx(2 / 3.25)
    # Both right, one, none, with 1/4, 1/2, 1/4: the part that is right has variance 1/8, as it is if they do not care.
    assert found.spread == pytest.approx(1)
    assert found.independent
    whole.right_together[:] = 0.5  # each is right where the other is: variance 1/4
    assert analyses.bound(whole).spread == pytest.approx(2)
    assert not analyses.bound(whole).independent


def test_the_bound_where_a_client_has_fewer_modules_and_wrong_ones_weigh_nothing():
    found = analyses.bound(two_by_two(right=0.5, weight=0.5, weight_right=0.5, right_together=0.4))
    assert found.modules == 1.5
    assert found.alpha == np.inf
    assert found.least == pytest.approx(0.5 / (0.5 + 0.5 / 1.5))
    assert analyses.bound(two_by_two(right=1.0, weight=0.5, weight_right=0.5)) is None
    assert analyses.bound(two_by_two(weight=0.5)) is None
    assert analyses.bound(two_by_two(right=0.5, weight=0.5, weight_right=0.5).of(0)).modules == 1


# --- a real run

QUICK = {"rounds": 3, "gate_epochs": 3, "batch_size": 32, "device": "cpu", "evaluate_every": 5}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """FedPer's heads, looked at seldom; client 1 keeps its own."""
    task = fedexperts.Task.of(data="digits", clients=4, samples_per_client=60, partition="dirichlet", alpha=1.0)
    return fedexperts.run("pm-moe", task, out=tmp_path_factory.mktemp("pools") / "run", keep_out=(1,), **QUICK)


def test_all_clients_as_one_program_say_the_same(run):
    stacked = fedexperts.run("pm-moe", run.simulation.task, keep_out=(1,), **QUICK | {"executor": "stacked"})
    found, expected = analyses.pool_use(stacked.simulation), analyses.pool_use(run.simulation)
    for field in fields(Pool):
        np.testing.assert_allclose(getattr(found, field.name), getattr(expected, field.name), atol=1e-4)


def test_where_it_began_is_always_looked_at(run):
    assert run.record.curve.rounds.tolist() == [1, 4]
    assert run.before.curve.rounds.tolist() == [3]  # a run that begins afresh is not
    assert analyses.mixture(run.record).base.clients == run.before.figures["last"].clients


def test_the_base_of_a_run_in_one_go_is_at_hand(run, tmp_path):
    selected = run.before.figures["selected"]
    assert analyses.mixture(run.record).selected.base == selected
    assert analyses.mixture(Record.load(run.folder)).selected.base == selected
    nowhere = fedexperts.run("pm-moe", run.simulation.task, **QUICK)
    assert analyses.mixture(nowhere.record).selected.base == nowhere.before.figures["selected"]
    copy = shutil.copytree(run.folder, tmp_path / "copy")
    shutil.rmtree(copy / "before")
    assert analyses.mixture(Record.load(copy)).selected is None


def test_the_base_is_found_where_the_run_goes_on_from_it(run, tmp_path):
    task, quick = run.simulation.task, {name: value for name, value in QUICK.items() if name != "gate_epochs"}
    for method, place in (("fedper", "base"), ("fedrep", "other")):
        fedexperts.run(method, task, out=tmp_path / "here" / place, **quick | {"rounds": 2, "evaluate_every": 1})
    settings = fedexperts.api.settings_for("pm-moe", {"from": tmp_path / "here" / "base", "gate_epochs": 1})
    fedexperts.api.execute(settings, task, tmp_path / "here" / "run")

    def found(folder: Path) -> Figure | None:
        selected = analyses.mixture(Record.load(folder)).selected
        return selected and selected.base

    expected = Record.load(tmp_path / "here" / "base").figures["selected"]
    assert found(tmp_path / "here" / "run") == expected
    (tmp_path / "here").rename(tmp_path / "there")  # moved together
    there = tmp_path / "there"
    assert found(there / "run") == expected
    again = quick | {"rounds": 3, "evaluate_every": 1, "lr": 0.3}
    other = fedexperts.run("fedper", task, out=tmp_path / "here" / "base", **again)
    assert other.record.fingerprint == Record.load(there / "run").fingerprint
    assert found(there / "run") == expected  # where --from found it lies another one now: that of the run is beside it
    summary = (there / "base" / SUMMARY).read_text()
    (there / "base" / SUMMARY).write_text(summary.replace('"data": ', '"data": 1'))
    assert found(there / "run") is None  # other data, or another split of them
    (there / "base" / SUMMARY).write_text("{")
    assert found(there / "run") is None  # it cannot be read
    (there / "base" / SUMMARY).write_text(summary)
    history = (there / "base" / HISTORY).read_bytes()
    for damaged in (b"\xff" + history, b"", history.replace(b",", b";"), history.split(b"\n")[0] + b"\n"):
        (there / "base" / HISTORY).write_bytes(damaged)
        assert found(there / "run") is None
        assert fedexperts.load(there / "run", task=task).before is None  # and this run is none the worse
    records = [Record.load(there / "run"), Record.so_far(there / "run")]
    (there / "base" / HISTORY).write_bytes(history)
    for record in (*records, Record.load(there / "run")):  # nothing of the base is read before it is asked for
        assert record.before.figures["selected"] == expected
    shutil.rmtree(there / "base")
    assert found(there / "run") is None
    assert fedexperts.load(there / "run", task=task).before is None
    (there / "other").rename(there / "base")
    assert found(there / "run") is None  # a run of another method


def test_predictions_are_what_each_client_chose(run):
    chosen = analyses.mixture(run.record)  # after the last round, as no other was looked at
    for client, own in enumerate(run.simulation.task.clients):
        dataset = run.simulation.task.dataset
        right = run.predict(client, dataset.inputs[own.test]).argmax(1) == dataset.labels[own.test]
        assert right.mean() == pytest.approx(chosen.chosen.clients[client])
    assert chosen.chosen.clients != run.figures["last"].clients


def test_modules_in_the_place_of_a_clients_own(run):
    pool, task = analyses.pool_use(run.simulation), run.simulation.task
    assert pool.has.tolist() == [[True, False, True, True], [True] * 4, *[[True, False, True, True]] * 2]
    np.testing.assert_allclose(np.diag(pool.right), run.before.figures["last"].clients)
    assert np.nanmax(pool.samples, axis=1).tolist() == [12] * 4
    pooled, method = run.simulation.server, run.simulation.method
    for client, own in enumerate(task.clients):
        model = Model(method.parts(run.simulation.specs[client]))
        model.load_state_dict(run.clients[client])
        images = scaled(torch.from_numpy(task.dataset.inputs[own.test]), torch.float32)
        with torch.no_grad():
            features = model.eval().extractor(images)
            scores = model.gate.scores(features)
        weights = scores[:, pool.has[client]].softmax(1)
        for place, module in enumerate(np.flatnonzero(pool.has[client])):
            weight, bias = pooled["pool.weight"][module], pooled["pool.bias"][module]
            if module == client:
                weight, bias = model.head.weight, model.head.bias
            right = (features @ weight.T + bias).argmax(1).numpy() == task.dataset.labels[own.test]
            assert pool.right[client, module] == pytest.approx(right.mean())
            if pool.removed[client, module] == 0:
                assert pool.weight[client, module] == pytest.approx(weights[:, place].mean().item(), abs=1e-5)


def test_of_the_others_modules_a_part_is_removed(run, monkeypatch):
    simulation = run.simulation
    pool, method = analyses.pool_use(simulation), simulation.method
    assert not np.nansum(pool.removed)  # a fifth of three is none
    monkeypatch.setattr(
        simulation, "method", type(method)(method.train, method.options.model_dump() | {"denoise": 0.5})
    )
    halved = analyses.pool_use(simulation)
    assert np.nansum(halved.removed, axis=1).tolist() == pytest.approx([1, 1, 1, 1])
    assert not np.diag(halved.removed).any()
    kept = halved.removed == 0
    np.testing.assert_allclose(halved.weight[kept], pool.weight[kept])


def test_a_pool_is_read_as_it_was_written(run, tmp_path):
    assert Pool.load(None, 4) is None
    assert Pool.load(tmp_path, 4) is None
    pool = analyses.pool_use(run.simulation)
    pool.save(tmp_path / POOL)
    assert len((tmp_path / POOL).read_text().splitlines()) == 1 + 3 * 3 + 4
    found = Pool.load(tmp_path, 4)
    for field in fields(Pool):
        np.testing.assert_allclose(getattr(found, field.name), getattr(pool, field.name), rtol=1e-5)
    (tmp_path / POOL).write_text("client,module\n0,0\n")
    with pytest.raises(SavedStateError, match="make it again: fedexperts analyse pool"):
        Pool.load(tmp_path, 4)


def test_what_modules_tell_of_their_owners(run, monkeypatch, capsys):
    example = Path(__file__).parents[2] / "examples" / "what_modules_tell.py"
    monkeypatch.setattr(sys, "argv", [str(example), str(run.folder)])
    runpy.run_path(str(example), run_name="__main__")
    found, classes, members = capsys.readouterr().out.splitlines()
    assert found.endswith("of 3 clients")  # client 1 gave nothing away
    assert 0 < float(classes.partition("AUC ")[2].split()[0]) <= 1
    assert 0 < float(members.partition("AUC ")[2]) <= 1


def test_a_method_without_a_pool_is_named(run):
    other = fedexperts.run("fedavg", run.simulation.task, rounds=1, device="cpu")
    with pytest.raises(MethodError, match="FedAvg \\(fedavg\\) pools no modules"):
        analyses.pool_use(other.simulation)
