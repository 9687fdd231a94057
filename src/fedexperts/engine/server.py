"""The server's half of a run: whom it asks, what it sends, what it makes of the replies."""

from collections.abc import Sequence

from fedexperts.engine.member import Member
from fedexperts.methods import Channel, Message, Reply, Round, State
from fedexperts.randomness import stream


class Server(Member):
    """Its state and the number of complete rounds are all it holds. Of clients it uses only what is public."""

    server: State

    def sample(self, round_number: int) -> list[int]:
        """S^t: K = C·N clients, drawn without replacement; all, in a round that the method wants everyone in."""
        if self.method.everyone(self.now(round_number)):
            return list(range(len(self.specs)))
        rng = stream(self.settings.seed, "sampling", round_number)
        return sorted(rng.choice(len(self.specs), self.sample_size, replace=False).tolist())

    def send(self, client: int, now: Round) -> Message:
        """What a client gets at the start of a round."""
        message = self.method.send(self.server, self.specs[client].public, now)
        self.passes(now.number, Channel.DOWN, self.specs[client], message)
        return message

    def message_for(self, client: int) -> Message:
        """What the server would send to a client now."""
        return self.method.send(self.server, self.specs[client].public, self.now(self.round + 1))

    def combine(self, replies: Sequence[Reply], now: Round) -> None:
        """Take in what came; the round is then complete at the server."""
        self.server = self.method.combine(self.server, sorted(replies, key=lambda reply: reply.client), now)
        self.round = now.number
