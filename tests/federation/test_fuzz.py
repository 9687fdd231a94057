"""Whatever is sent, to a server or to a site: it is understood or refused, and whoever was sent it goes on.

The examples are the same every time; the peers' service has its own in `test_peers.py`.
"""

import csv
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from neighbourhood import Neighbourhood, settings_for
from own import NAMES, folder_of_tables
from support import make_task

from fedexperts.client import Client
from fedexperts.config import Settings
from fedexperts.errors import FederationError, MethodError
from fedexperts.federation.envelope import Answer, Envelope, Request, Task
from fedexperts.federation.holding import Own
from fedexperts.methods import Message
from fedexperts.task import Task as RunTask

Spoil = Callable[[bytes], bytes]
TASK = make_task("cnn5/8", sizes=(20, 16, 12))
HEALTH = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def fuzz(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=HEALTH)


@cache
def heard() -> dict[tuple[type[Envelope], Task], bytes]:
    """What really goes between a server and a site, one of each kind."""
    found: dict[tuple[type[Envelope], Task], bytes] = {}

    def note(client: int, request: bytes, answer: bytes) -> bytes:
        for kind, raw in ((Request, request), (Answer, answer)):
            found.setdefault((kind, Request.from_bytes(request).head.task), raw)
        return answer

    def listen(name: str, settings: Settings, task: RunTask | list[Own] = TASK, model: str | None = None) -> None:
        there = Neighbourhood(place / name, task, models=[model] * 3 if model else None)
        there.meddle = note
        there.coordinator(there.begun(settings)).run()

    place = Path(mkdtemp())
    listen("peers", settings_for("fedmoe-da", TASK, rounds=1, options={"experts": (2,)}))
    listen("own-models", settings_for("fedavg", TASK, rounds=1), model="site_nets:plain")
    folder_of_tables(place / "clients")
    tables = RunTask.of(data=f"{place / 'clients'}/")
    own = [Own(Client.read(place / "clients" / name), tables.settings) for name in NAMES]
    listen("own-tables", settings_for("fedavg", tables, rounds=1), own)
    first = {"rounds": 1, "batch_size": 16, "lr": 0.05}
    listen("going-on", settings_for("pm-moe", TASK, rounds=1, options={"base": "fedper", "pretraining": first}))
    assert {task for _, task in found} == set(Task), "something that is asked was not heard"
    return found


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("../../etc/passwd")
JSON = SIMPLE | st.lists(SIMPLE, max_size=3) | st.dictionaries(st.text(max_size=9), SIMPLE, max_size=3)


def another_value(turns: Sequence[int], new: str | None, value: object) -> Spoil:
    """An envelope whose head has something else in one place, or something more: which way to it the turns say."""

    def spoil(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:4], "big")
        head = json.loads(raw[4 : 4 + length])
        place, key = None, None
        for turn in turns:
            inner = head if place is None else place[key]
            if not isinstance(inner, dict | list) or not inner:
                break
            place = inner
            key = turn % len(place) if isinstance(place, list) else sorted(place)[turn % len(place)]
        place[new if new is not None and isinstance(place, dict) else key] = value
        changed = json.dumps(head).encode()
        return len(changed).to_bytes(4, "big") + changed + raw[4 + length :]

    return spoil


def other_bytes(at: int, width: int, by: bytes) -> Spoil:
    def spoil(raw: bytes) -> bytes:
        where = at % (len(raw) + 1)
        return raw[:where] + by + raw[where + width :]

    return spoil


TURNS = st.lists(st.integers(0, 100), min_size=1, max_size=5)
SPOILT_BYTES = st.builds(other_bytes, st.integers(0, 10**5), st.integers(0, 8), st.binary(max_size=12))
SPOILT = st.builds(another_value, TURNS, st.none() | st.text(max_size=9), JSON) | SPOILT_BYTES
ANY_BYTES = st.binary(max_size=400)


@pytest.mark.parametrize("task", Task)
@pytest.mark.parametrize("kind", [Request, Answer])
@fuzz(60)
@given(spoil=SPOILT, noise=ANY_BYTES)
def test_whatever_bytes_are_opened_they_are_an_envelope_or_a_refusal(
    kind: type[Envelope], task: Task, spoil: Spoil, noise: bytes
) -> None:
    honest = heard()[kind, task]
    assert kind.from_bytes(honest).to_bytes() == honest
    for raw in (spoil(honest), noise):
        try:
            opened = kind.from_bytes(raw)
        except FederationError:
            continue
        assert kind.from_bytes(opened.to_bytes()).to_bytes() == opened.to_bytes()


MESSAGE = Message({"head.bias": torch.zeros(3)}, {"samples": 3.0}).to_bytes()


@fuzz(300)
@given(spoil=SPOILT_BYTES, noise=ANY_BYTES)
def test_whatever_bytes_are_read_they_are_a_message_or_an_error_of_ours(spoil: Spoil, noise: bytes) -> None:
    for raw in (spoil(MESSAGE), noise):
        try:
            message = Message.from_bytes(raw)
        except MethodError:
            continue
        assert message.payload_bytes <= len(raw)


@fuzz(60)
@given(spoil=SPOILT, noise=ANY_BYTES)
def test_whatever_a_server_asks_a_site_answers(spoil: Spoil, noise: bytes, tmp_path: Path) -> None:
    """Not to train: for how long is a server's to say."""
    site = Neighbourhood(tmp_path / "there", TASK).sites[2]
    for raw in (spoil(heard()[Request, Task.OPEN]), noise):
        head = Answer.from_bytes(site.answer(raw)).head
        assert head.refused or head.profile or head.task is Task.OPEN
        assert "the site's log has more" not in head.refused
    assert not (tmp_path / "etc").exists()


@pytest.mark.federation
def test_whatever_a_site_answers_the_round_goes_on(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    federation = there.coordinator(settings_for("fedmoe-da", TASK, rounds=10**6, options={"experts": (2,)}), minimum=2)

    @fuzz(25)
    @given(in_training=SPOILT, in_closing=SPOILT)
    def a_round(in_training: Spoil, in_closing: Spoil) -> None:
        lies = {Task.TRAIN: in_training, Task.CLOSE: in_closing}

        def meddle(client: int, request: bytes, answer: bytes) -> bytes:
            lie = lies.get(Request.from_bytes(request).head.task)
            return lie(answer) if client == 1 and lie is not None else answer

        there.meddle = meddle
        before = federation.round
        federation.step()
        assert federation.round == before + 1
        assert all(tensor.isfinite().all() for tensor in federation.server.values())
        last = [row for row in federation.history.rows if row["round"] == federation.round]
        assert {row["client"] for row in last if row["train_loss"] is not None} >= {0, 2}

    a_round()
    assert federation.round >= 25
    with open(tmp_path / "server" / "absences.csv", newline="", encoding="utf-8") as file:
        assert {row["site"] for row in csv.DictReader(file)} == {"site-1"}
