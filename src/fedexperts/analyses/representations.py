"""What the clients' models make of their test samples, in two dimensions by t-SNE (FedMoE's Figure 5)."""

from collections.abc import Sequence

import numpy as np

from fedexperts.analyses.samples import SampleTable, ask_clients
from fedexperts.engine import Simulation
from fedexperts.errors import MethodError, SettingsError
from fedexperts.randomness import stream

REPRESENTATIONS = "representations.csv"
PERPLEXITY = 30  # neighbours that a sample is kept near to, t-SNE's usual number; fewer where samples are few
FEWEST = 4


def embed(simulation: Simulation, clients: Sequence[int], samples: int = 50) -> SampleTable:
    """At most so many test samples of each client, in one plane; the same run gives the same bytes."""
    seed, tests = simulation.settings.seed, simulation.task.clients
    chosen = {client: _some(tests[client].test, samples, stream(seed, "t-SNE", client)) for client in clients}
    found = ask_clients(simulation, simulation.method.represent, chosen)
    widths = {client: features.shape[1] for client, features in zip(chosen, found, strict=True)}
    if len(set(widths.values())) > 1:
        raise MethodError(
            "representations of different widths have no plane in common: "
            + ", ".join(f"client {client} has {width}" for client, width in widths.items())
            + "; choose clients with the same"
        )
    features = np.concatenate(found)
    if len(features) < FEWEST:
        raise SettingsError(f"t-SNE needs at least {FEWEST} samples, these clients give {len(features)}")
    return SampleTable.of(simulation, chosen, ("x", "y"), _plane(features, seed))


def _some(test: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return test if len(test) <= most else np.sort(rng.choice(test, most, replace=False))


def _plane(features: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.manifold import TSNE  # here, because it takes a while to import
    from threadpoolctl import threadpool_limits

    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    with threadpool_limits(1):  # several threads add in any order, and t-SNE makes much of the last digit
        plane: np.ndarray = TSNE(perplexity=perplexity, random_state=seed % 2**32).fit_transform(features)
    return plane
