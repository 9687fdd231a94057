"""The table for a paper: the right figures, the best of them bold, and a caption that says what they are."""

from statistics import mean, stdev

from fedexperts.report.latex import escape, latex_table
from fedexperts.report.runs import line_up


def cells(table):
    lines = [line.strip().removesuffix(r" \\") for line in table.splitlines() if line.rstrip().endswith(r"\\")]
    return {name: values for name, *values in (line.split(" & ") for line in lines)}


def test_one_seed_has_its_spread_over_clients(three):
    table = latex_table(line_up(three))
    found = cells(table)
    assert list(found) == ["method", "FedMoE", "Standalone", "FedAvg"]
    assert found["method"] == ["selected", "last", "peak", r"worst 10\,\%"]
    figures = three[0].figures
    kinds = ("selected", "last", "peak")
    expected = [f"${100 * figures[kind].mean:.2f} \\pm {100 * figures[kind].std:.2f}$" for kind in kinds]
    assert found["FedAvg"] == [*expected, f"${100 * figures['selected'].worst_tenth:.2f}$"]
    assert [name for name, values in found.items() if "mathbf" in values[0]] == ["FedMoE"]
    assert r"standard deviation over the clients (one run, seed 0)" in table
    assert "best on validation data (selected)" in table
    assert "digits, pathological, 2 classes per client, equal counts, 10 clients, 40 rounds." in table


def test_several_seeds_have_their_spread_over_seeds(make_record):
    records = [make_record(m, seed=s, rounds=3, level=0.5 + s / 10) for m in ("fedavg", "standalone") for s in (1, 2)]
    records.append(make_record("fedmoe", rounds=3, seed=1, level=0.9))
    table = latex_table(line_up(records))
    values = [100 * record.figures["last"].mean for record in records[:2]]
    assert cells(table)["FedAvg"][1] == f"${mean(values):.2f} \\pm {stdev(values):.2f}$"
    assert "standard deviation over 2 seeds" in table


def test_names_cannot_be_commands():
    assert escape(r"50 % of a_b & \c{d} #1 ~ ^ α") == (
        r"50 \% of a\_b \& \textbackslash{}c\{d\} \#1 \textasciitilde{} \textasciicircum{} $\alpha$"
    )
