"""How much privacy a run costs its clients: ε, of an accountant's library.

A client's replies are Gaussian mechanisms of the same σ, one for each round that it is in; k of them are exactly one of
σ/√k. Sampling hides nobody: whom the server asks it knows, and it sees every reply by itself. So nothing is taken off
for it, as is right only where nobody can tell who was in a round.
"""

import math
from collections import Counter
from dataclasses import dataclass

from fedexperts.config import PrivacySettings
from fedexperts.engine.server import Server
from fedexperts.errors import SettingsError
from fedexperts.methods import Owner


@dataclass(frozen=True)
class Privacy:
    """What a run comes to for the client that is asked most often."""

    epsilon: float | None  # None: there is no noise, so no bound
    delta: float
    clip: float
    noise: float
    rounds: int  # that it is in

    def notes(self, title: str) -> list[str]:
        """For whoever reads the run's accuracy."""
        if self.epsilon is None:
            return [f"{title}: changes are clipped to norm {self.clip:g}, without noise: no privacy is shown (ε = ∞)"]
        return [
            f"{title}: ε = {self.epsilon:.4g} at δ = {self.delta:g} (clip {self.clip:g}, noise {self.noise:g}, "
            f"a client in {self.rounds} rounds)",
            "ε is of a client's changes or none in their place, against all who see its replies, the server too; "
            "sampling is of a fixed size and known, and takes nothing off ε; the numbers beside the tensors (samples, "
            "losses, accuracies) are not protected",
        ]


def privacy_of(server: Server) -> Privacy | None:
    """What all rounds of a run come to; nothing where no noise was asked for, or nothing leaves a client."""
    asked: PrivacySettings = server.settings.part(PrivacySettings)
    if asked.clip is None or not server.method.owned(Owner.SHARED):
        return None
    times = Counter(client for number in range(server.settings.rounds) for client in server.sample(number + 1))
    rounds = max(times.values())
    bound = epsilon(asked.noise, rounds, asked.delta) if asked.noise else None
    return Privacy(bound, asked.delta, asked.clip, asked.noise, rounds)


def epsilon(noise: float, rounds: int, delta: float) -> float:
    """Of so many Gaussian mechanisms with a noise of so many times what they may differ by."""
    try:
        from dp_accounting import get_epsilon_gaussian
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error.name} is missing, which finds ε: pip install 'fedexperts[privacy]'") from None
    return float(get_epsilon_gaussian(noise / math.sqrt(rounds), delta))
