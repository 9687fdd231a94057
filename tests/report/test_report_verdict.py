"""What the page claims."""

from dataclasses import replace

from fedexperts.report.runs import line_up
from fedexperts.report.verdict import verdict


def test_winner_and_by_how_much(three):
    fedavg, alone, fedmoe = (100 * record.figures["selected"].mean for record in three)
    gains = line_up(three)[2].gains
    text = verdict(line_up(three))
    assert text.startswith(f"FedMoE reaches {fedmoe:.2f} % (selected, round {three[2].figures['selected'].round})")
    assert f"{fedmoe - alone:.2f} points above Standalone ({alone:.2f} %)" in text
    assert f"better for {sum(g > 0 for g in gains)} of 10 clients" in text
    assert f"Next is FedAvg with {fedavg:.2f} %" in text


def test_nothing_beats_standalone(make_record):
    records = [make_record("fedavg", level=0.6), make_record("standalone", level=0.9)]
    below = 100 * (records[1].figures["selected"].mean - records[0].figures["selected"].mean)
    text = verdict(line_up(records))
    assert text.startswith("Nothing beats Standalone")
    assert f"{below:.2f} points below: its communication has not paid" in text


def test_a_tie_does_not_beat_standalone(make_record):
    fedavg = make_record("fedavg")
    alone = replace(fedavg, settings=make_record("standalone").settings, title="Standalone")
    text = verdict(line_up([fedavg, alone]))
    assert text.startswith("Nothing beats Standalone")
    assert "exactly as much" in text


def test_without_standalone_the_question_stays_open(make_record):
    text = verdict(line_up([make_record("fedavg"), make_record("fedmoe")]))
    assert text.startswith("FedMoE reaches")
    assert "points above the next, FedAvg" in text
    assert "Standalone was not run" in text


def test_a_run_alone_wins_nothing(make_record):
    assert "Nothing was run beside it" in verdict(line_up([make_record("fedmoe")]))
    assert "No method was run" in verdict(line_up([make_record("standalone"), make_record("standalone", lr=0.5)]))


def test_runs_of_different_tasks_have_no_winner(make_record):
    text = verdict(line_up([make_record("fedavg", seed=1), make_record("standalone", seed=2, clients=5)]))
    assert "differ in clients, seed" in text
    assert "no winner" in text
