"""What `fedexperts watch` shows of folders in any state: nothing in them, half of a line, or a finished run."""

import json

import fedexperts
from fedexperts.measure import HISTORY, SETTINGS, SUMMARY, Record
from fedexperts.report.live import Watched


def test_a_run_from_its_beginning_to_its_end(tmp_path):
    folder, shown = tmp_path / "run", tmp_path / "shown"
    task = fedexperts.Task.of(data="digits", clients=3, samples_per_client=60)
    done = fedexperts.run("fedavg", task, out=folder, rounds=3, device="cpu").record
    shown.mkdir()
    watched = Watched(lambda: [shown], pause=0)
    assert Record.so_far(shown) is None
    for name in (SETTINGS, "labels.csv"):
        (shown / name).write_bytes((folder / name).read_bytes())
    assert "waits for its first evaluated round" in watched.page()
    header, *lines = (folder / HISTORY).read_text().splitlines(keepends=True)
    (shown / HISTORY).write_text(header + "".join(lines[:6]) + lines[6][:10])  # its writer is in the middle of a line
    record = Record.so_far(shown)
    assert record is not None
    assert record.title == "FedAvg"
    assert list(record.rows) == list(done.rows[:6])
    first = json.loads(str(watched.news("")))
    assert "round 2 of 3" in first["body"]
    assert "every figure is as of now" in first["body"]
    assert watched.news(first["page"]["version"]) is None
    (shown / HISTORY).write_text(header + "".join(lines))
    (shown / SUMMARY).write_bytes((folder / SUMMARY).read_bytes())
    last = json.loads(str(watched.news(first["page"]["version"])))
    assert "finished" in last["body"]
    assert "every figure is as of now" not in last["body"]
    assert last["page"]["version"] != first["page"]["version"]
    assert len(last["page"]["clients"][0]["runs"][0]["rounds"]) == 3


def test_a_folder_that_cannot_be_read_is_said_and_the_others_are_shown(tmp_path):
    good, bad = tmp_path / "good", tmp_path / "<b>bad"
    task = fedexperts.Task.of(data="digits", clients=3, samples_per_client=60)
    fedexperts.run("standalone", task, out=good, rounds=1, device="cpu")
    bad.mkdir()
    (bad / SETTINGS).write_text("rounds = 'many'")
    body = json.loads(str(Watched(lambda: [good, bad]).news("")))["body"]
    assert "&lt;b&gt;bad" in body
    assert "cannot be read" in body
    assert "Standalone reaches" in body
