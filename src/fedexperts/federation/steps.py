"""A site's steps in a run: it trains, adopts from peers, says how its model does, and keeps what it came to."""

from collections.abc import Mapping

from fedexperts.federation.envelope import Answer, AnswerHead, Request, Shelf, Task
from fedexperts.federation.local import Local
from fedexperts.federation.spool import Spool
from fedexperts.federation.vault import Vault
from fedexperts.methods import Message, State

OWN, MEMORY, HEARD, START = "own", "memory", "heard", "start"
"""What a site keeps: the client's own tensors, what is no part of its model, what the server last and first had."""


class Step:
    """One step of one client; it begins with what is on disk, and what it comes to is there before it is said."""

    def __init__(self, local: Local, vault: Vault, spool: Spool, address: str) -> None:
        self.local = local
        self.vault = vault
        self.spool = spool
        self.address = address
        self.exchanges = local.method.exchanges
        self.memory = vault.tensors(MEMORY) or {}
        local.load(vault.tensors(OWN))
        local.fetched = []

    def open(self, round_number: int) -> bytes:
        """Show what peers can ask for, unless that is just about to change."""
        trained, settled = self.vault.trained, self.vault.settled
        shelf = self._shelve(trained, "settled" if trained else "fresh") if trained == settled else None
        said = AnswerHead(task=Task.OPEN, run=self.local.run, round=round_number, shelf=shelf)
        return Answer(said).to_bytes()

    def train(self, request: Request, raw: bytes) -> bytes:
        head, local = request.head, self.local
        self._settle({})  # an earlier round that was not closed
        remembered = self.local.hears(request.payload, self.memory)
        now = local.now(head.round)
        reply, loss = local.trains(now)
        shelf = self._shelve(head.round, "trained")
        flops = local.meter.present.pop(local.client, 0)
        said = AnswerHead(task=head.task, run=local.run, round=head.round, loss=loss, flops=flops, shelf=shelf)
        answer = Answer(said, packed(reply)).to_bytes()
        tensors = {OWN: local.fleet.kept(local.client)}
        if remembered:
            tensors[MEMORY] = self.memory | remembered
        if self.exchanges:
            tensors[HEARD] = local.method.heard(local.message)
        settled = self.vault.settled if self.exchanges else head.round
        self.vault.keep(head.task, head.round, raw, answer, tensors, head.round, settled)
        return answer

    def close(self, request: Request, raw: bytes) -> bytes:
        head, local = request.head, self.local
        trained = self.vault.trained
        changed = self._settle(head.shelves if trained == head.round else {})
        shelf = self._shelve(trained, "settled") if changed else None
        scores = None
        if head.evaluate:
            local.hears(request.payload, self.memory)
            scores = local.scored(local.now(head.round))
        said = AnswerHead(
            task=head.task,
            run=local.run,
            round=head.round,
            scores=scores,
            shelf=shelf,
            fetched=tuple(local.fetched),
        )
        answer = Answer(said).to_bytes()
        tensors: dict[str, State] = {OWN: local.fleet.kept(local.client)} if changed else {}
        self.vault.keep(head.task, head.round, raw, answer, tensors, trained, trained, scores, request.payload)
        return answer

    def _settle(self, shelves: Mapping[int, Shelf]) -> bool:
        """Adopt from peers what the last trained round still wants; whether there was anything to do."""
        if not self.exchanges or self.vault.settled == self.vault.trained:
            return False
        self.local.adopts(self.vault.tensors(HEARD) or {}, shelves, self.local.now(self.vault.trained))
        return True

    def _shelve(self, round_number: int, when: str) -> Shelf | None:
        if not self.exchanges:
            return None
        version = f"{round_number:06}-{when}"
        digests = self.spool.fill(self.local.run, version, self.local.served())
        return Shelf(address=self.address, version=version, digests=digests)


def packed(message: Message) -> bytes:
    """A message as it goes into an envelope; one that says nothing is no bytes."""
    return message.to_bytes() if message or message.known else b""
