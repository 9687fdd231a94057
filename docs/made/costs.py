"""What a round of each method costs a client, seen in a real run: every message and every FLOP of a small one."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from markup import size

import fedexperts
from fedexperts.engine import Observer, Simulation
from fedexperts.methods import Channel, Message, part_of, registry

CLIENTS, ROUNDS, TYPICAL = 6, 4, 3
TASK: dict[str, Any] = {"data": "digits", "clients": CLIENTS, "samples": 240, "classes_per_client": 5, "model": "cnn5"}
SHORT: dict[str, dict[str, Any]] = {"pm-moe": {"gate_epochs": ROUNDS - 1}}
"""Rounds of a second phase; the first one's are those of its base."""


@dataclass(frozen=True)
class Cost:
    """Of a round, per client: bytes by channel, and training FLOPs against FedAvg's."""

    up: float
    down: float
    peer: float
    flops: float

    def differs(self, other: "Cost") -> bool:
        """By more than a twentieth somewhere."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return any(abs(mine - theirs) > 0.05 * max(mine, theirs) for mine, theirs in pairs)


@dataclass
class Seen(Observer):
    """Bytes of the tensors that travelled, by (part, channel, round), per client."""

    bytes: dict[tuple[str, Channel, int], float] = field(default_factory=lambda: defaultdict(float))

    def started(self, simulation: Simulation) -> None:
        self.bytes.clear()  # of the run that comes before PM-MoE's

    def message(self, round_number: int, channel: Channel, client: int, message: Message) -> None:
        for name, tensor in message.tensors.items():
            self.bytes[part_of(name), channel, round_number] += tensor.numel() * tensor.element_size() / CLIENTS

    @property
    def parts(self) -> list[str]:
        return sorted({part for part, _, _ in self.bytes})

    def travelled(self, part: str, channel: Channel) -> str:
        """In a round like most, or else in some."""
        if typical := self.bytes[part, channel, TYPICAL]:
            return size(typical)
        most = max(self.bytes[part, channel, number] for number in range(1, ROUNDS + 1))
        return f"{size(most)} in some rounds" if most else "–"


@dataclass(frozen=True)
class Dry:
    """A small run of a method: its rounds' costs, and which parts travelled."""

    rounds: list[Cost]
    seen: Seen

    @property
    def typical(self) -> Cost:
        return self.rounds[TYPICAL - 1]

    @property
    def others(self) -> dict[str, Cost]:
        """Rounds that are not like that one."""
        names = ["the first round", *(f"round {number}" for number in range(2, ROUNDS)), "the last round"]
        return {name: cost for name, cost in zip(names, self.rounds, strict=True) if cost.differs(self.typical)}


def dry_runs() -> dict[str, Dry]:
    """Every method by name."""
    task, plain, found = fedexperts.Task.of(**TASK), 0.0, {}
    for name in sorted(registry(), key=lambda name: name != "fedavg"):  # which all others are measured against
        seen, own = Seen(), SHORT.get(name, {})
        result = fedexperts.run(
            name, task, rounds=ROUNDS, device="cpu", executor="loop", evaluate_every=ROUNDS, observers=[seen], **own
        )
        sums: list[dict[str, float]] = [defaultdict(float) for _ in range(ROUNDS)]
        for row in result.history:
            for what in ("up_bytes", "down_bytes", "peer_bytes", "flops"):
                sums[int(row["round"] or 0) - 1][what] += (row[what] or 0) / CLIENTS
        plain = plain or sums[0]["flops"]
        rounds = [Cost(s["up_bytes"], s["down_bytes"], s["peer_bytes"], s["flops"] / plain) for s in sums]
        found[name] = Dry(rounds, seen)
    return found
