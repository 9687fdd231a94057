"""Asking sites: until enough have answered rightly, or there is no more time; who did not is written down."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import Field

from fedexperts.config import Frozen
from fedexperts.errors import FederationError, FedExpertsError
from fedexperts.federation.absences import Absences
from fedexperts.federation.carrier import Carrier
from fedexperts.federation.envelope import Answer, Request, Task
from fedexperts.methods import Round

log = logging.getLogger(__name__)

Take = Callable[[int, Answer], None]
"""What is done with a site's answer; an error refuses it."""


class Rules(Frozen):
    """How long a server waits, for how many, and what it takes."""

    deadline: float = Field(default=600.0, gt=0, description="seconds that sites have for a step")
    minimum: int = Field(default=1, ge=1, description="replies that a round needs")
    attempts: int = Field(default=3, ge=1, description="how often a round is tried that has fewer")
    change_limit: float = Field(
        default=10.0, gt=0, description="norm of a reply's change, in multiples of the norm of what was sent"
    )


class Asking:
    """The questions of one run."""

    def __init__(
        self,
        run: str,
        sites: Sequence[str],
        carrier: Carrier,
        rules: Rules,
        absences: Absences,
        note: Callable[..., None],
    ) -> None:
        self.run = run
        self.sites = sites
        self.carrier = carrier
        self.rules = rules
        self.absences = absences
        self.refused: set[int] = set()  # who has, since this was last emptied
        self._note = note

    def gather(
        self, task: Task, now: Round, requests: Mapping[int, Request], take: Take, minimum: int = 0
    ) -> list[int]:
        """Ask, and take the answers that are right; whose they were. With fewer than the minimum, ask again."""
        done: list[int] = []
        why: dict[int, str] = {}
        for _ in range(self.rules.attempts):
            raw = {client: request.to_bytes() for client, request in requests.items() if client not in done}
            why = dict.fromkeys(raw, f"no answer within {self.rules.deadline:g} s")
            self._note(doing=str(task), in_round=now.number, waiting=self._named(raw))
            for client, answered in self.carrier.ask(raw, self.rules.deadline) if raw else ():
                try:
                    take(client, self._opened(client, answered, task, now))
                except FedExpertsError as error:
                    why[client] = str(error)
                except (RuntimeError, ValueError, LookupError, TypeError) as error:
                    why[client] = f"its answer cannot be used ({type(error).__name__}: {error})"
                else:
                    done.append(client)
                self._note(waiting=self._named(client for client in raw if client not in done))
            if len(done) >= minimum:
                break
        missing = {client: why[client] for client in requests if client not in done}
        self._note(waiting=[], absent={self.sites[client]: reason for client, reason in missing.items()})
        for client, reason in missing.items():
            self.absent(client, task, now, reason)
        if len(done) < minimum:
            named = "; ".join(f"{self.sites[client]}: {reason}" for client, reason in missing.items())
            raise FederationError(
                f"round {now.number} has {len(done)} replies after {self.rules.attempts} attempts, {minimum} are "
                f"needed ({named})"
            )
        return sorted(done)

    def absent(self, client: int, task: Task, now: Round, why: str) -> None:
        log.warning("round %d, %s: without %s: %s", now.number, task, self.sites[client], why)
        self.absences.note(now.number, client, self.sites[client], str(task), why)

    def _named(self, clients: Iterable[int]) -> list[str]:
        return [self.sites[client] for client in clients]

    def _opened(self, client: int, raw: bytes, task: Task, now: Round) -> Answer:
        answer = Answer.from_bytes(raw)
        if answer.head.refused:
            self.refused.add(client)
            raise FederationError(f"it refuses: {answer.head.refused}")
        head = answer.head
        if (head.task, head.run, head.round) != (task, self.run, now.number):
            found = f"{head.task or 'nothing'}, run {head.run or 'none'}, round {head.round}"
            raise FederationError(
                f"it answers to {found} where it was asked {task}, run {self.run}, round {now.number}"
            )
        return answer
