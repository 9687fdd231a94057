"""The ledger: every message, counted where it is made, by channel."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from fedexperts.engine import Observer
from fedexperts.methods import Channel, Message


@dataclass
class Traffic:
    """What went through a channel: values in tensors, and bytes on the wire."""

    messages: int = 0
    parameters: int = 0
    bytes: int = 0

    def add(self, message: Message) -> None:
        self.count(message.parameters, message.wire_bytes)

    def count(self, parameters: int, wire_bytes: int) -> None:
        """A message that somebody else has seen."""
        self.messages += 1
        self.parameters += parameters
        self.bytes += wire_bytes


class Ledger(Observer):
    """Traffic of the present round by (client, channel)."""

    def __init__(self) -> None:
        self.present: dict[tuple[int, Channel], Traffic] = defaultdict(Traffic)

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        self.present[client, channel].add(message)

    def ended(self, round_number: int, losses: Mapping[int, float]) -> None:
        self.present.clear()
