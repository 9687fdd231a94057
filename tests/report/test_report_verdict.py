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


def test_seeds_are_averaged(make_record):
    levels = {"fedmoe": (0.92, 0.84), "standalone": (0.86, 0.80), "fedavg": (0.70, 0.71)}
    records = [make_record(name, level=level, seed=n) for name, own in levels.items() for n, level in enumerate(own)]
    text = verdict(line_up(records))
    fedmoe, alone = (
        [100 * r.figures["selected"].mean for r in records if r.settings.method == name]
        for name in ("fedmoe", "standalone")
    )
    mean, spread = sum(fedmoe) / 2, abs(fedmoe[0] - fedmoe[1]) / 2**0.5
    assert text.startswith(f"FedMoE, 2 seeds, reaches {mean:.2f} ± {spread:.2f} % (selected), ")
    assert f"{mean - sum(alone) / 2:.2f} points above Standalone ({sum(alone) / 2:.2f} ± " in text
    assert "of 20 clients of all seeds" in text
    assert "Next is FedAvg, 2 seeds, with " in text


def test_lines_of_different_seeds_have_no_winner(make_record):
    records = [make_record("fedavg", seed=0), make_record("fedavg", seed=1), make_record("standalone", seed=0)]
    assert "differ in seed." in verdict(line_up(records))
