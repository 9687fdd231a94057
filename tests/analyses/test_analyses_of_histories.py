"""Analyses of histories, against numbers worked out by hand."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedexperts.analyses import by_seed, difference, sweep, swept
from fedexperts.config import Settings
from fedexperts.errors import SettingsError
from fedexperts.measure import COLUMNS, Record, Row, common_target, cost_until


def tiny(
    accuracies: Sequence[Sequence[float] | None],
    method: str = "fedmoe",
    options: dict[str, object] | None = None,
    **settings: object,
) -> Record:
    """A run of two clients; a round is their accuracies, or None where it was not evaluated."""
    rows: list[Row] = []
    for number, round_accuracies in enumerate(accuracies, start=1):
        for client in range(2):
            row: Row = dict.fromkeys(COLUMNS, 0)
            row |= {
                "round": number,
                "client": client,
                "up_bytes": 100,
                "down_bytes": 20,
                "peer_bytes": 3,
                "flops": 1000,
            }
            row |= {"up_parameters": 10, "down_parameters": 2, "peer_parameters": 1}
            value = None if round_accuracies is None else round_accuracies[client]
            row |= {"test_accuracy": value, "validation_accuracy": value, "test_samples": 10, "validation_samples": 10}
            rows.append(row)
    values = {"clients": 2, "rounds": len(accuracies), "method": method, "options": options or {}, **settings}
    title = {"fedmoe": "FedMoE", "fedavg": "FedAvg", "standalone": "Standalone"}[method]
    return Record(Settings.check(values), title, rows, np.ones((2, 2), dtype=int), ("a", "b"))


# --- cost


def test_cost_counts_everything_until_the_first_evaluated_round_that_reaches_it():
    record = tiny([[0.2, 0.4], None, [0.9, 0.9], [0.1, 0.1], [1.0, 1.0]])
    cost = cost_until(record, 90)
    assert cost is not None
    assert (cost.round, cost.bytes, cost.parameters, cost.flops) == (3, 3 * 2 * 123, 3 * 2 * 13, 3 * 2 * 1000)
    last = cost_until(record, 90.5)
    assert last is not None
    assert last.round == 5
    assert cost_until(tiny([[0.5, 0.7]]), 61) is None


def test_common_target_is_what_all_reach_in_whole_percent():
    assert common_target([tiny([[0.9, 0.9]]), tiny([[0.8, 0.859], [0.1, 0.1]])]) == 82
    assert common_target([tiny([[0.29, 0.29]])]) == 29  # 100 × 0.29 is 28.999999999999996


# --- clients


def test_difference_client_by_client():
    found = difference(tiny([[0.5, 0.9]]), tiny([[0.7, 0.8]], "fedavg"))
    assert found.points == pytest.approx([-20, 10])
    assert (found.better, found.equal, found.worse) == (1, 0, 1)
    again = difference(tiny([[0.3, 0.9]]), tiny([[0.3, 0.9]], "fedavg"))
    assert (again.better, again.equal, again.worse) == (0, 2, 0)


def test_difference_reads_the_figure_that_is_asked_for():
    run, other = tiny([[0.9, 0.9], [0.1, 0.1]]), tiny([[0.5, 0.5], [0.6, 0.6]], "fedavg")
    assert difference(run, other, "last").points == pytest.approx([-50, -50])
    assert difference(run, other, "peak").points == pytest.approx([30, 30])


def test_difference_needs_one_task():
    with pytest.raises(SettingsError, match="FedMoE and FedAvg differ in alpha, seed"):
        difference(tiny([[0.5, 0.9]], seed=1, alpha=0.5), tiny([[0.5, 0.9]], "fedavg"))


# --- seeds and sweeps


def test_runs_that_differ_only_in_their_seed_belong_together():
    one = [[0.5, 0.5]]
    records = [tiny(one, seed=1), tiny(one, "fedavg", seed=1), tiny(one, seed=2), tiny(one, seed=2, lr=0.5), tiny(one)]
    assert by_seed(records) == [[0, 2, 4], [1], [3]]


def test_the_same_seed_again_is_not_another_seed():
    one = [[0.5, 0.5]]
    assert by_seed([tiny(one, seed=1), tiny(one, seed=1), tiny(one, seed=2)]) == [[0, 2], [1]]


def test_where_it_ran_does_not_matter():
    one = [[0.5, 0.5]]
    assert by_seed([tiny(one, seed=1, device="cpu"), tiny(one, seed=2, data_dir="/somewhere")]) == [[0, 1]]


def test_sweep_finds_its_setting_and_averages_seeds():
    records = [
        tiny([[0.9, 0.9]], classes_per_client=2, seed=0),
        tiny([[0.7, 0.7]], classes_per_client=2, seed=1),
        tiny([[0.4, 0.6]], classes_per_client=8),
        tiny([[0.3, 0.3]], "standalone", classes_per_client=8),
    ]
    found = sweep(records)
    assert found.setting == "classes_per_client"
    moe, alone = found.lines
    assert [(p.value, p.seeds) for p in moe.points] == [(2, 2), (8, 1)]
    assert [p.mean for p in moe.points] == pytest.approx([0.8, 0.5])
    assert moe.points[0].std == pytest.approx(0.2 / np.sqrt(2))  # of a sample of two
    assert moe.points[1].std is None
    assert [(p.value, p.mean) for p in alone.points] == [(8, 0.3)]


def test_a_method_without_the_setting_is_a_level():
    records = [tiny([[v, v]], options={"gate_lr": lr}) for v, lr in ((0.8, 0.1), (0.6, 0.001))]
    found = sweep([*records, tiny([[0.5, 0.5]], "standalone")])
    assert found.setting == "gate_lr"
    assert [p.value for p in found.lines[0].points] == [0.001, 0.1]
    assert (found.lines[1].level, found.lines[1].points) == (0.5, [])


def test_one_value_for_all_clients_is_a_number():
    one = [[0.5, 0.5]]
    assert swept([tiny(one, options={"gate_width": [8]}), tiny(one, options={"gate_width": [64]})]) == ["gate_width"]
    assert swept([tiny(one, options={"gate_width": [8]}), tiny(one, options={"gate_width": [8, 64]})]) == []


def test_methods_with_rates_of_their_own_are_no_sweep():
    assert swept([tiny([[0.5, 0.5]], lr=0.1), tiny([[0.5, 0.5]], "fedavg", lr=0.5)]) == []


def test_sweep_over_one_of_several_settings():
    records = [tiny([[a, a]], alpha=a, lr=lr) for a in (0.1, 0.5) for lr in (0.1, 0.2)]
    with pytest.raises(SettingsError, match="differ in lr, alpha: say which of them is swept"):
        sweep(records)
    found = sweep(records, "alpha")
    assert [[(p.value, p.seeds) for p in line.points] for line in found.lines] == [[(0.1, 1), (0.5, 1)]] * 2
    assert [line.records[0].settings.lr for line in found.lines] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("over", "says"),
    [(None, "do not differ in a setting"), ("alfa", "'alfa'; did you mean 'alpha'"), ("model", "number as 'model'")],
)
def test_sweeps_that_are_none(over, says):
    with pytest.raises(SettingsError, match=says):
        sweep([tiny([[0.5, 0.5]], seed=1), tiny([[0.5, 0.5]], seed=2)], over)


def test_a_run_without_a_value_beside_others_with_one():
    with pytest.raises(SettingsError, match="a run of FedMoE does not say its gate_lr"):
        sweep([tiny([[0.5, 0.5]], options={"gate_lr": 0.1}), tiny([[0.5, 0.5]])], "gate-lr")
