"""Replies that are refused, each with its reason, while the round goes on; and rounds that are repeated."""

import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from neighbourhood import Neighbourhood, settings_for
from support import assert_same_bits, make_task

from fedexperts.errors import FederationError
from fedexperts.federation.envelope import Answer, AnswerHead, Request, Task
from fedexperts.methods import Message

TASK = make_task("cnn5/8", sizes=(20, 16, 12))


def changed(**changes: torch.Tensor | None) -> Callable[[Message], Message]:
    def change(message: Message) -> Message:
        tensors = {**message.tensors, **{name.replace("__", "."): t for name, t in changes.items()}}
        return Message({n: t for n, t in tensors.items() if t is not None}, message.numbers)

    return change


def scaled(message: Message, factor: float) -> Message:
    return Message({name: tensor * factor for name, tensor in message.tensors.items()}, message.numbers)


BAD = {
    "NaN": (lambda m: scaled(m, float("nan")), "no numbers"),
    "an enormous norm": (lambda m: scaled(m, 1e4), r"its change has norm .*, more than 10 times"),
    "wrong shapes": (changed(head__bias=torch.zeros(3).double()), r"head.bias is float64 of shape \(3,\) where"),
    "wrong types": (changed(head__bias=torch.zeros(4)), r"head.bias is float32 of shape \(4,\) where float64"),
    "a part too many": (changed(gate__weight=torch.zeros(4).double()), "nobody asked for gate.weight"),
    "a part too few": (changed(head__bias=None), "it lacks head.bias"),
    "other samples": (lambda m: Message(m.tensors, {"samples": 1e9}), "1e[+]09 samples where it announced 16"),
    "a number that is none": (lambda m: Message(m.tensors, {"samples": float("inf")}), "the number samples is inf"),
    "another number": (
        lambda m: Message(m.tensors, m.numbers | {"votes": 3.0}),
        "its numbers are samples, votes where samples are",
    ),
    "huge": (changed(x__y=torch.zeros(10**6)), "a reply of 4,.* bytes where at most 110,"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_refused_and_the_round_goes_on(kind: str, tmp_path: Path) -> None:
    spoil, says = BAD[kind]
    there = Neighbourhood(tmp_path, TASK)
    there.meddle = spoiling(lambda answer: Answer(answer.head, spoil(Message.from_bytes(answer.payload)).to_bytes()))
    assert_same_bits(finished(there, says), without_the_second())


@cache
def without_the_second() -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        alone = Neighbourhood(Path(folder), TASK)
        alone.meddle = spoiling(lambda answer: None)
        return finished(alone, "no answer within")


RAW = {
    "cut off": (lambda answer: Answer(answer.head, answer.payload[:-5]), "bytes are not a message"),
    "no safetensors": (lambda answer: Answer(answer.head, b"pickle" * 9), "bytes are not a message"),
    "another round": (
        lambda a: Answer(a.head.model_copy(update={"round": 9}), a.payload),
        "it answers to train, run a-run, round 9 where",
    ),
    "another run": (
        lambda a: Answer(a.head.model_copy(update={"run": "other"}), a.payload),
        "it answers to train, run other, round 1 where",
    ),
    "a refusal": (lambda a: Answer(AnswerHead(refused="no space left")), "it refuses: no space left"),
}


@pytest.mark.parametrize("kind", RAW)
def test_an_answer_that_is_none_is_refused_and_the_round_goes_on(kind: str, tmp_path: Path) -> None:
    spoil, says = RAW[kind]
    there = Neighbourhood(tmp_path, TASK)
    there.meddle = spoiling(spoil)
    finished(there, says)


def spoiling(spoil: Callable[[Answer], Answer | None]) -> Callable[[int, bytes, bytes], bytes | None]:
    """What the second site says of its training goes through this."""

    def meddle(client: int, request: bytes, answer: bytes) -> bytes | None:
        if client != 1 or Request.from_bytes(request).head.task is not Task.TRAIN:
            return answer
        spoilt = spoil(Answer.from_bytes(answer))
        return None if spoilt is None else spoilt.to_bytes()

    return meddle


def finished(there: Neighbourhood, says: str) -> dict[str, torch.Tensor]:
    """A run of one round; its table of absences has one row, of the second site, and says this."""
    federation = there.coordinator(settings_for("fedavg", TASK, rounds=1))
    federation.run()
    header, row = (there.folder / "server" / "absences.csv").read_text().splitlines()
    assert header == "round,client,site,task,why"
    number, client, site, task, why = row.split(",", 4)
    assert (number, client, site, task) == ("1", "1", "site-1", "train")
    assert re.search(says, why.replace('"', "")), why
    return federation.server


def test_a_site_that_does_not_introduce_itself_is_named_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedexperts.federation.carrier.PAUSE", 0.0)
    there = Neighbourhood(tmp_path, TASK)
    lies = [b"nothing", Answer(AnswerHead(refused="no data yet")).to_bytes(), Answer(AnswerHead()).to_bytes()]
    there.meddle = lambda client, request, answer: lies.pop() if client == 1 and lies else answer
    with caplog.at_level("INFO"):
        there.coordinator(settings_for("fedavg", TASK, rounds=1))
    for said in ("not say what data it has: nothing", "not say what data it has: no data yet", "cut off, or is none"):
        assert any(line.startswith("site-1: ") and said in line for line in caplog.messages)
    assert "site-1 has 16 samples of shape (1, 8, 8)" in caplog.messages


def test_a_round_with_too_few_replies_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    asked: list[int] = []

    def deaf(client: int, request: bytes, answer: bytes) -> bytes | None:
        if Request.from_bytes(request).head.task is not Task.TRAIN:
            return answer
        asked.append(client)
        return answer if client == 0 or len(asked) > heard_after else None

    there.meddle = deaf
    heard_after = 3
    there.coordinator(settings_for("fedavg", TASK, rounds=1), minimum=3).run()
    assert asked == [0, 1, 2, 1, 2]

    heard_after = 99
    again = Neighbourhood(tmp_path / "again", TASK)
    federation = again.coordinator(settings_for("fedavg", TASK, rounds=2), minimum=2, attempts=2)
    federation.step()
    again.meddle = deaf
    with pytest.raises(FederationError, match=r"round 2 has 1 replies after 2 attempts, 2 are needed \(site-1: no"):
        federation.step()
