"""`fedexperts` for a site that lies, with a good certificate and our own code: python liar.py WHOM site …

To the server it tells a lie a round, from the second round on. To its peers it gives other bytes than it announced,
then nothing at all, and asks them for what is not theirs to give.
"""

import sys
import threading
from collections.abc import Callable

import torch

from fedexperts.cli import main
from fedexperts.errors import FederationError
from fedexperts.federation.envelope import Answer, Fetched, Request, Shelf, Task
from fedexperts.federation.peers import SERVICE, Peers
from fedexperts.federation.site import Site
from fedexperts.federation.spool import Spool
from fedexperts.methods import Message

Lie = Callable[[Answer, Answer], bytes]
"""(what it should say, what it said to the same in the first round) → what it says."""


def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Lie:
    def lie(honest: Answer, first: Answer) -> bytes:
        message = Message.from_bytes(honest.payload)
        tensors = {name: change(tensor) for name, tensor in message.tensors.items()}
        return Answer(honest.head, Message(tensors, message.numbers).to_bytes()).to_bytes()

    return lie


def headed(**head: object) -> Lie:
    return lambda honest, first: Answer(honest.head.model_copy(update=head), honest.payload).to_bytes()


def scored(**scores: int) -> Lie:
    def lie(honest: Answer, first: Answer) -> bytes:
        return headed(scores=honest.head.scores.model_copy(update=scores))(honest, first)

    return lie


CLAIMED = Fetched(peer=99, what="experts.0", parameters=1, bytes=1)
HUGE = Message({"x.y": torch.zeros(10**7)}).to_bytes()

LIES: dict[str, tuple[Task, Lie]] = {
    "no numbers": (Task.TRAIN, changed(lambda tensor: tensor * torch.nan)),
    "other shapes": (Task.TRAIN, changed(lambda tensor: tensor[:1])),
    "huge": (Task.TRAIN, lambda honest, first: Answer(honest.head, HUGE).to_bytes()),
    "an enormous norm": (Task.TRAIN, changed(lambda tensor: tensor * 1e4)),
    "an old round": (Task.TRAIN, lambda honest, first: first.to_bytes()),
    "cut off": (Task.TRAIN, lambda honest, first: Answer(honest.head, honest.payload[:-5]).to_bytes()),
    "another run": (Task.TRAIN, headed(run="another")),
    "nothing": (Task.TRAIN, lambda honest, first: b""),
    "tested on nothing": (Task.CLOSE, scored(test_samples=0, test_correct=0)),
    "better than perfect": (Task.CLOSE, scored(test_correct=10**6)),
    "fetched from nobody": (Task.CLOSE, headed(fetched=(CLAIMED,))),
}
FIRST = 2
"""The round of the first lie; in the one before it is honest, so that it has something old to say."""
NOT_THE_LAST_WORD = FIRST + len(LIES)
"""The round in which it is honest again."""
OTHER_BYTES, SILENCE = 2, 3
"""Rounds of what it is as a peer."""
STOLEN = "stolen"
"""A file in its folder, if it got what it should not."""


def lies_to_the_server() -> None:
    honestly, said = Site.answer, dict[Task, Answer]()
    lies = dict(enumerate(LIES.values(), FIRST))

    def answer(site: Site, raw: bytes) -> bytes:
        honest = honestly(site, raw)
        head = Request.from_bytes(raw).head
        task, lie = lies.get(head.round, (None, None))
        said.setdefault(head.task, Answer.from_bytes(honest))
        return lie(Answer.from_bytes(honest), said[head.task]) if lie and task is head.task else honest

    Site.answer = answer


def lies_to_its_peers() -> None:
    honestly, fetch = Spool.read, Peers.fetch

    def read(spool: Spool, run: str, version: str, what: str) -> bytes:
        raw = honestly(spool, run, version, what)
        if int(version[:6]) == SILENCE:
            threading.Event().wait()
        return raw[:-1] + b"!" if int(version[:6]) == OTHER_BYTES else raw

    def steals(peers: Peers, shelf: Shelf, run: str, what: str) -> bytes:
        raw = fetch(peers, shelf, run, what)
        [channel] = [kept for (name, _), kept in peers._channels.items() if name == shelf.site]
        for request in (
            f'{{"run":"{run}","version":"{shelf.version}","what":"../../../own.key"}}',
            f'{{"run":"../../{shelf.site}","version":"{shelf.version}","what":"own"}}',
        ):
            try:
                channel.call(f"/{SERVICE}/Fetch", request.encode(), 60)
            except FederationError:
                continue
            (peers.folder / STOLEN).touch()
        return raw

    Spool.read, Peers.fetch = read, steals


if __name__ == "__main__":
    whom, *words = sys.argv[1:]
    {"server": lies_to_the_server, "peers": lies_to_its_peers}[whom]()
    sys.argv = ["fedexperts", *words]
    main()
