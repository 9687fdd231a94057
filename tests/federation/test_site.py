"""A site: what it refuses, what it does once, what it keeps when something goes wrong."""

import os
from pathlib import Path

import pytest
import torch
from neighbourhood import Neighbourhood, settings_for
from support import assert_same_bits, make_task

from fedexperts.errors import FederationError
from fedexperts.federation.envelope import Answer, Request, Task
from fedexperts.federation.holding import Holding
from fedexperts.federation.site import OWN, Site
from fedexperts.federation.spool import Spool
from fedexperts.federation.vault import Vault
from fedexperts.methods import Message

TASK = make_task("cnn5/8", sizes=(20, 16, 12))


class Requests(Neighbourhood):
    """Remembers what the first site was asked, and what it said."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TASK)
        self.heard: list[tuple[Request, bytes]] = []
        self.meddle = self._note

    def _note(self, client: int, request: bytes, answer: bytes) -> bytes:
        if client == 0:
            self.heard.append((Request.from_bytes(request), answer))
        return answer

    def of(self, task: Task) -> list[tuple[Request, bytes]]:
        return [(request, answer) for request, answer in self.heard if request.head.task is task]

    def own(self) -> dict[str, object]:
        return Vault(self.sites[0].folder / "state" / "a-run").tensors(OWN)


def refusal(raw: bytes) -> str:
    return Answer.from_bytes(raw).head.refused


@pytest.mark.parametrize("method", ["fedmoe", "fedmoe-da"])
def test_a_step_that_is_repeated_has_the_same_answer_and_changes_nothing(method: str, tmp_path: Path) -> None:
    there = Requests(tmp_path)
    there.coordinator(settings_for(method, TASK, rounds=2)).run()
    before = there.own()
    for task in (Task.TRAIN, Task.CLOSE):
        request, answer = there.of(task)[-1]
        again = Neighbourhood(tmp_path, TASK).sites[0]  # another process would begin like this
        assert again.answer(request.to_bytes()) == answer
    assert_same_bits(there.own(), before)


def test_an_old_round_is_refused(tmp_path: Path) -> None:
    there = Requests(tmp_path)
    there.coordinator(settings_for("fedmoe", TASK, rounds=2)).run()
    before = there.own()
    (first, _), (second, _) = there.of(Task.TRAIN)
    assert "round 1 of run a-run is an old one" in refusal(there.sites[0].answer(first.to_bytes()))
    other = Request(second.head, first.payload)  # the last round, but with another message
    assert "round 2 of run a-run is an old one" in refusal(there.sites[0].answer(other.to_bytes()))
    assert_same_bits(there.own(), before)


def test_a_site_refuses_what_its_operator_did_not_agree_to(tmp_path: Path) -> None:
    there = Requests(tmp_path)
    federation = there.coordinator(settings_for("fedmoe", TASK, rounds=1))
    federation.run()
    request, _ = there.of(Task.TRAIN)[-1]
    head = request.head.model_copy(update={"round": 2})
    private = Message({"local_expert.fc1.weight": next(iter(federation.server.values()))})
    assert "local_expert is private" in refusal(there.sites[0].answer(Request(head, private.to_bytes()).to_bytes()))

    nothing = Request(head, Message({"x.y": torch.zeros(1)}).to_bytes())  # the method does not find what it needs
    assert "neither keeps nor receives" in refusal(there.sites[0].answer(nothing.to_bytes()))

    def planned(**values: object) -> str:
        plan = head.plan.model_copy(update=values)
        return refusal(there.sites[0].answer(Request(head.model_copy(update={"plan": plan})).to_bytes()))

    assert "unknown method 'steal'" in planned(settings=head.plan.settings | {"method": "steal"})
    options = {"pretrained": "/etc", "embedding": "frozen"}
    reads = head.plan.settings | {"method": "fedmoe-da", "options": options}
    assert "a server may not name files of a site" in planned(settings=reads)
    code = head.plan.client.model_copy(update={"model": "os:system"})
    assert "a server may not name code for a site to run" in planned(client=code)
    more = head.plan.client.model_copy(update={"samples": 21})
    assert "planned for other data than this site has: training samples: 20, not 21" in planned(client=more)
    assert "String should match pattern" in planned(run="../../etc")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_and_harms_nothing(tmp_path: Path) -> None:
    there = Requests(tmp_path)
    federation = there.coordinator(settings_for("fedmoe", TASK, rounds=2))
    federation.step()
    before, folder = there.own(), there.sites[0].folder / "state" / "a-run"
    full = folder / "own-000002-train.safetensors"
    full.symlink_to("/dev/full")
    federation.step()
    assert "No space left on device" in refusal(there.of(Task.TRAIN)[-1][1])
    assert_same_bits(there.own(), before)
    assert "site-0,train,it refuses: " in (tmp_path / "server" / "absences.csv").read_text()


def test_a_spool_gives_only_what_is_in_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    (tmp_path / "secret").write_text("private")
    os.symlink(tmp_path / "secret", tmp_path / "spool-link")
    for number in range(6):
        spool.fill("a-run", f"{number:06}-trained", {"experts.0": b"%d" % number})
    assert spool.read("a-run", "000005-trained", "experts.0") == b"5"
    for run, version, what in [
        ("a-run", "000000-trained", "experts.0"),  # too old
        ("a-run", "000005-trained", "experts.1"),
        ("a-run", "000005-trained", "../../../secret"),
        ("a-run", "../../secret", "experts.0"),
        ("..", "000005-trained", "experts.0"),
        ("/etc", "000005-trained", "passwd"),
    ]:
        with pytest.raises(FederationError):
            spool.read(run, version, what)


@pytest.mark.parametrize(("noise", "reason"), [(0.4, "takes part from 0.5 on"), (0.5, "")])
def test_a_site_takes_no_part_with_less_noise_than_its_operator_wants(
    noise: float, reason: str, tmp_path: Path
) -> None:
    there = Requests(tmp_path)
    there.sites[0] = Site(there.sites[0].folder, Holding.of(TASK, 0), there.fetch, least_noise=0.5)
    there.coordinator(settings_for("fedavg", TASK, rounds=1, clip=0.01, noise=noise)).run()
    [(_, answer)] = there.of(Task.OPEN)
    assert refusal(answer).endswith(reason)
    assert bool(refusal(answer)) == bool(reason)
    assert len(there.of(Task.TRAIN)) == (not reason)
