"""The figures: what is drawn is what was measured."""

import numpy as np
import pytest

from fedexperts.measure import Record
from fedexperts.report.figures import accuracy_curves, client_accuracy, label_picture, loss_curves
from fedexperts.report.runs import REFERENCE_COLOUR
from fedexperts.report.traffic_figures import traffic


def test_accuracy_curve_per_method(three):
    lines = [trace for trace in accuracy_curves(three).data if trace.mode == "lines+markers"]
    assert [line.name for line in lines] == ["FedAvg", "Standalone", "FedMoE"]
    for line, record in zip(lines, three, strict=True):
        np.testing.assert_array_equal(line.x, np.arange(1, 41))
        np.testing.assert_allclose(line.y, 100 * record.curve.test.mean(axis=1))
        marked = [int(x) for x, size in zip(line.x, line.marker.size, strict=True) if size]
        assert marked == [record.figures["selected"].round]


def test_band_is_one_standard_deviation_to_each_side(make_record):
    record = make_record("fedavg", level=0.5)
    band = next(trace for trace in accuracy_curves([record]).data if trace.fill == "toself")
    upper, lower = band.y[:40], band.y[40:][::-1]
    np.testing.assert_allclose(upper - lower, 200 * record.curve.test.std(axis=1))
    np.testing.assert_allclose((upper + lower) / 2, 100 * record.curve.test.mean(axis=1))


def test_band_ends_where_accuracy_ends(make_record):
    band = accuracy_curves([make_record("fedavg", level=0.99)]).data[0]
    assert band.y.max() == 100


def test_loss_is_the_mean_of_the_sampled_clients(make_record):
    record = make_record("fedavg", rounds=2, clients=3)
    losses = [1.0, 3.0, None, None, 0.5, None]
    for row, loss in zip(record.rows, losses, strict=True):
        row["train_loss"] = loss
    (line,) = loss_curves([record]).data
    assert list(line.x) == [1, 2]
    assert list(line.y) == [2.0, 0.5]


def test_traffic_adds_up_and_silence_is_level(three):
    fedavg, standalone, fedmoe = traffic(three).data
    np.testing.assert_allclose(fedavg.x, 12 * np.arange(1, 41))  # 10 clients × (0.4 + 0.8) MB a round
    np.testing.assert_allclose(fedmoe.y, 100 * three[2].curve.test.mean(axis=1))
    assert list(standalone.x) == [0, 480]
    assert list(standalone.y) == [100 * three[1].figures["selected"].mean] * 2


def test_traffic_of_rounds_that_are_not_evaluated_counts(make_record):
    record = make_record("fedavg", rounds=4)
    for row in record.rows:
        if row["round"] % 2:
            row["test_accuracy"] = None
    (line,) = traffic([record]).data
    np.testing.assert_allclose(line.x, [24, 48])


def test_clients_gain_over_standalone(three):
    dots = client_accuracy(three).data
    assert [trace.name for trace in dots] == ["FedAvg", "FedMoE"]
    for trace, record in zip(dots, [three[0], three[2]], strict=True):
        own, alone = (np.array(r.figures["selected"].clients) for r in (record, three[1]))
        np.testing.assert_allclose(trace.y, 100 * (own - alone))
        assert list(trace.x) == list(range(10))


def test_without_standalone_clients_have_their_accuracy(make_record):
    record = make_record("fedmoe")
    (trace,) = client_accuracy([record]).data
    np.testing.assert_allclose(trace.y, 100 * np.array(record.figures["selected"].clients))


def test_many_clients_are_put_in_order(make_record):
    record = make_record("fedmoe", clients=100)
    (trace,) = client_accuracy([record]).data
    assert (np.diff(trace.y) >= 0).all()
    np.testing.assert_allclose(trace.y, 100 * np.array(record.figures["selected"].clients)[trace.customdata])
    assert sorted(trace.customdata) == list(range(100))


@pytest.mark.parametrize(("clients", "classes", "numbers"), [(10, 10, True), (100, 100, False)])
def test_label_picture_shows_the_counts(make_record, clients, classes, numbers):
    record = make_record(clients=clients, classes=classes, rounds=1)
    figure = label_picture(record.counts, record.class_names, "who has what")
    (heat,) = figure.data
    np.testing.assert_array_equal(heat.z, record.counts)
    assert list(heat.x) == record.class_names
    assert figure.layout.title.text == "who has what"
    assert (heat.texttemplate is not None) == numbers
    if numbers:
        np.testing.assert_array_equal(heat.text == "", record.counts == 0)


@pytest.mark.parametrize("largest", [0, 1, 2, 7, 293, 5000])
def test_scale_of_counts_runs_from_nothing_to_the_largest(largest):
    """Plotly takes another scale without a word where the ends are not exactly 0 and 1, or go backwards."""
    scale = label_picture(np.full((2, 2), largest), ["a", "b"]).data[0].colorscale
    places = [place for place, _ in scale]
    assert places[0] == 0
    assert places[-1] == 1
    assert places == sorted(places)
    assert scale[0][1].endswith(",0.000)")


def test_one_colour_for_a_method_in_all_figures(three):
    def colours(figure):
        return {trace.name: trace.line.color for trace in figure.data}

    everywhere = colours(accuracy_curves(three))
    assert everywhere["Standalone"] == REFERENCE_COLOUR
    assert len(set(everywhere.values())) == 3
    assert colours(loss_curves(three)) == colours(traffic(three)) == everywhere
    assert colours(client_accuracy(three)).items() < everywhere.items()


def test_no_two_of_many_runs_look_alike(make_record):
    records: list[Record] = [make_record(f"method{number}", rounds=2) for number in range(20)]
    lines, dots = loss_curves(records).data, client_accuracy(records).data
    assert len({(trace.line.color, trace.line.dash) for trace in lines}) == 20
    assert len({(trace.line.color, trace.marker.symbol) for trace in dots}) == 20


def test_names_are_text_to_plotly(make_record):
    """Plotly reads tags and links in names."""
    hostile = '<a href="https://example.org">x</a>'
    assert "<a" not in loss_curves([make_record(title=hostile)]).data[0].name
    assert "<a" not in label_picture(np.ones((1, 1), dtype=int), [hostile]).data[0].x[0]
