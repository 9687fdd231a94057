"""What can be watched in a run. An observer implements the events that it wants."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedexperts.engine.cohort import Job
from fedexperts.methods import Channel, Message, Want

if TYPE_CHECKING:
    from fedexperts.engine.rounds import Simulation


@dataclass(frozen=True)
class Evaluation:
    """How one client's model does, on its own validation and test data."""

    client: int
    validation_correct: int
    validation_samples: int
    test_correct: int
    test_samples: int


class Observer:
    """Base of all observers: it watches nothing."""

    def started(self, simulation: "Simulation") -> None:
        """Before the first round of this process."""

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        """A message has been made; `client` is who sends or gets it."""

    def fetched(self, round_number: int, client: int, want: Want) -> None:
        """A client has got from a peer what it wanted; the message itself is an event of its own."""

    def trained(self, round_number: int, job: Job) -> None:
        """A cohort has trained; its losses are on the device."""

    def evaluated(self, round_number: int, results: list[Evaluation]) -> None:
        """All clients have been evaluated."""

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        """A round is over; `losses` are the sampled clients' mean training losses."""

    def completed(self, folder: Path | None) -> None:
        """All rounds are done, and what the run leaves is in its folder, if it has one."""

    def stopped(self, reason: BaseException) -> None:
        """The run ends here, before its last round: interrupted, or diverged."""

    def noted(self) -> Any:
        """What it has of the present round, as JSON: where several processes do a run together, the others get it."""

    def add(self, noted: Any) -> None:
        """Take in what the same observer in another process has noted of the present round."""

    def save(self) -> dict[str, Any]:
        """What a checkpoint must hold for this observer, as JSON."""
        return {}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go back to what `save` gave."""
