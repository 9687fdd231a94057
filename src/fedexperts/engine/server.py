"""The server's half of a run: whom it asks, what it sends, what it makes of the replies."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedexperts.config import Settings
from fedexperts.engine.member import Member
from fedexperts.engine.observer import Observer
from fedexperts.engine.phases import phase
from fedexperts.engine.saved import read_manifest, read_tensors, write_tensors
from fedexperts.errors import SavedStateError
from fedexperts.methods import Channel, Message, Reply, Round, State
from fedexperts.randomness import stream
from fedexperts.task import ClientSpec


class Server(Member):
    """Its state and the number of complete rounds are all it holds. Of clients it uses only what is public."""

    server: State

    def sample(self, round_number: int) -> list[int]:
        """S^t: K = C·N clients, drawn without replacement; all, in a round that the method wants everyone in."""
        if self.method.everyone(self.now(round_number)):
            return list(range(len(self.specs)))
        rng = stream(self.settings.seed, "sampling", round_number)
        return sorted(rng.choice(len(self.specs), self.sample_size, replace=False).tolist())

    def due(self, every: int) -> bool:
        """Whether something that happens every so many rounds, and after the last one, happens after this one."""
        return self.round % every == 0 or self.round == self.settings.rounds

    @property
    def evaluates(self) -> bool:
        """Whether clients are to be evaluated now; so in the first round of a run that goes on from another, too."""
        began = self.round == 1 and self.method.begins() is not None  # what follows is held against it
        return self.due(self.settings.evaluate_every) or began

    def send(self, client: int, now: Round) -> Message:
        """What a client gets at the start of a round."""
        message = self.method.send(self.server, self.specs[client].public, now)
        self.passes(now.number, Channel.DOWN, self.specs[client], message)
        return message

    def message_for(self, client: int) -> Message:
        """What the server would send to a client now."""
        return self.message_to(self.specs[client])

    def message_to(self, client: ClientSpec) -> Message:
        """The same for any client, even one that is new."""
        return self.method.send(self.server, client.public, self.now(self.round + 1))

    @phase("aggregation")
    def combine(self, replies: Sequence[Reply], now: Round) -> None:
        """Take in what came; the round is then complete at the server."""
        self.server = self.method.combine(self.server, sorted(replies, key=lambda reply: reply.client), now)
        self.round = now.number

    def saved(self, folder: Path) -> dict[str, Any]:
        """What a checkpoint holds of the server; its tensors are then in the folder."""
        return {
            "round": self.round,
            "settings": self.settings.defining(),
            "server": write_tensors(folder, f"server.{self.round}.safetensors", self.server),
            "observers": {name: observer.save() for name, observer in self._named_observers()},
        }

    def checkpointed(self, folder: Path) -> dict[str, Any]:
        """The checkpoint in a folder, if it is one of this very run."""
        manifest = read_manifest(folder)
        # A setting that there was not yet has the value that it has by itself: what was done then.
        then, now = Settings.check(manifest["settings"]).defining(), self.settings.defining()
        then["options"], now["options"] = (self.method.completed(values["options"]) for values in (then, now))
        if changed := [f"{name} was {then.get(name)!r}" for name in now if then.get(name) != now[name]]:
            raise SavedStateError(
                f"the run in {folder.parent} was started with other settings than it has now: "
                f"{', '.join(changed)}; put them back"
            )
        return manifest

    def continues(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.server, self.round = read_tensors(folder, manifest["server"]), manifest["round"]
        for name, observer in self._named_observers():
            observer.restore(manifest["observers"].get(name, {}))

    def _named_observers(self) -> Iterator[tuple[str, Observer]]:
        """Each by its class; several of one are numbered from the second on."""
        seen: Counter[str] = Counter()
        for observer in self.observers:
            kind = type(observer).__name__
            seen[kind] += 1
            yield kind if seen[kind] == 1 else f"{kind} {seen[kind]}", observer
