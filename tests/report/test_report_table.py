"""The table: order, numbers, what is shown when, and that it can be read in a terminal."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from fedexperts.errors import SettingsError
from fedexperts.measure import MEANING, Record
from fedexperts.report.runs import line_up
from fedexperts.report.table import columns, comparison_table


def printed(records: list[Record], width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width).print(comparison_table(records))
    return out.getvalue()


def test_best_selected_comes_first(three):
    assert columns(line_up(three))["method"] == ["FedMoE", "Standalone", "FedAvg"]


def test_numbers_are_those_of_the_records(three):
    table = columns(line_up(three))
    fedmoe = three[2].figures
    for kind in MEANING:
        assert table[kind][0] == f"{100 * fedmoe[kind].mean:.2f}"
    assert table["std"][0] == f"{100 * fedmoe['selected'].std:.2f}"
    assert table["worst\n10 %"][0] == f"{100 * fedmoe['selected'].worst_tenth:.2f}"
    assert table["weigh-\nted"][0] == f"{100 * fedmoe['selected'].weighted:.2f}"
    assert table["up\nMB"] == ["160", "0", "160"]  # 40 rounds × 10 clients × 0.4 MB
    assert table["down\nMB"] == ["320", "0", "320"]
    assert table["train\nGFLOP"] == ["1200"] * 3
    assert table["time\ns"] == ["12.5"] * 3


def test_gain_is_the_difference_of_the_selected_means(three):
    fedavg, alone, fedmoe = (100 * record.figures["selected"].mean for record in three)
    assert columns(line_up(three))["gain"] == [f"{fedmoe - alone:+.2f}", "–", f"{fedavg - alone:+.2f}"]


def test_without_standalone_there_is_no_gain(make_record):
    assert "gain" not in columns(line_up([make_record("fedavg"), make_record("fedmoe")]))
    assert "gain =" not in printed([make_record("fedavg"), make_record("fedmoe")])


def test_standalone_of_another_task_is_no_reference(make_record):
    runs = line_up([make_record("fedavg", seed=1), make_record("standalone", seed=2)])
    assert [run.gain for run in runs] == [None, None]


def test_the_best_standalone_is_the_reference(make_record):
    weak, strong = make_record("standalone", lr=0.5, level=0.6), make_record("standalone", lr=0.1, level=0.8)
    assert line_up([weak, make_record("fedavg"), strong])[1].alone is strong


def test_a_tie_is_plus_nothing(make_record):
    fedavg = make_record("fedavg")
    alone = replace(fedavg, settings=make_record("standalone").settings, title="Standalone")
    assert columns(line_up([fedavg, alone]))["gain"] == ["+0.00", "–"]


def test_peer_traffic_is_shown_where_there_is_some(make_record):
    assert not any(header.startswith("peer") for header in columns(line_up([make_record("fedavg")])))
    peers = [make_record("fedavg"), make_record("fedmoe", peer_bytes=1_000_000)]
    assert columns(line_up(peers))["peer\nMB"] == ["400", "0"]


def test_large_traffic_has_a_larger_unit_for_all_channels(make_record):
    table = columns(line_up([make_record("fedavg", clients=100, rounds=200)]))
    assert table["up\nGB"] == ["8.00"]
    assert table["down\nGB"] == ["16.0"]


def test_runs_of_one_method_are_told_apart(make_record):
    runs = line_up([make_record("fedavg", lr=0.1), make_record("fedavg", lr=0.01), make_record("fedmoe")])
    assert [run.name for run in runs] == ["FedAvg (lr 0.1)", "FedAvg (lr 0.01)", "FedMoE"]


def test_options_tell_runs_apart_too(make_record):
    runs = line_up([make_record("fedmoe", options={"gate_width": [8]}), make_record("fedmoe")])
    assert [run.name for run in runs] == ["FedMoE (gate_width 8)", "FedMoE"]


def test_the_same_run_twice_gets_numbers(make_record):
    assert [run.name for run in line_up([make_record("fedavg")] * 2)] == ["FedAvg #1", "FedAvg #2"]


def test_terminal_shows_table_meanings_and_notes(three):
    text = printed(three)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    order = [line.split()[0] for line in lines if line.startswith(("FedMoE", "Standalone", "FedAvg"))]
    assert order == ["FedMoE", "Standalone", "FedAvg"]
    for kind, meaning in MEANING.items():
        assert f"{kind} = {meaning}" in text
    assert text.count("fedavg needs one model for all clients: all run cnn5") == 1


@pytest.mark.parametrize("width", [80, 100])
def test_a_run_is_one_line(three, width):
    best = next(line for line in printed(three, width).splitlines() if line.startswith("FedMoE"))
    assert best.split() == [column[0] for column in columns(line_up(three)).values()]


def test_no_digit_is_lost_in_a_narrow_terminal(three):
    wide, narrow = printed(three), printed(three, width=60)
    assert max(map(len, narrow.splitlines())) <= 60
    digits = [sorted(filter(str.isdigit, text)) for text in (wide, narrow)]
    assert digits[0] == digits[1]


def test_a_note_of_several_runs_stands_once_and_markup_is_text(make_record):
    text = printed([make_record("fedavg", notes=["[bold]x[/bold]"]), make_record("fedmoe", notes=["[bold]x[/bold]"])])
    assert text.count("Note: [bold]x[/bold]") == 1


def test_nothing_to_show_is_an_error():
    with pytest.raises(SettingsError, match="at least one"):
        comparison_table([])
