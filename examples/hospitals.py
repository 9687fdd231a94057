"""Three hospitals with different networks train together; images, and networks of their own, stay where they are.

`python examples/hospitals.py` takes ten seconds. Put your own arrays into `images`. Whether it pays, the run of
Standalone beside it tells; with 60 stand-in test images a hospital, that is no result.
"""

import numpy as np
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedexperts

WIDTH = 64  # FedMoE adds what a hospital's own network and the shared one see, so both must end in as many features


class Deep(nn.Module):
    """Any module will do, if it ends in a Linear: here that is `fc`."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.between, self.fc = nn.Linear(32 * 2 * 2, WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in (self.first, self.second):
            x = nn.functional.max_pool2d(convolution(x).relu(), 2)
        return self.fc(self.between(x.flatten(1)).relu())


def narrow(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A function makes a fresh network for each client that has it; a Sequential needs no name for its head."""
    first = (nn.Conv2d(shape[0], 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*first, nn.Linear(6 * 4 * 4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))


def images(hospital: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Stand-ins for scans: each hospital sees mostly some of the ten kinds, and its machine is a little brighter."""
    digits = load_digits()
    likely = np.where(np.isin(digits.target % 3, hospital), 1.0, 0.15)
    chosen = rng.choice(len(likely), 260, replace=False, p=likely / likely.sum())
    return (digits.images[chosen] * 14 + 15 * hospital).astype(np.uint8)[:, None], digits.target[chosen]


def main(rounds: int = 20) -> None:
    rng, clients = np.random.default_rng(0), []
    networks = {"north": (Deep(10), "fc"), "south": (narrow, None), "west": (narrow, None)}
    for number, (name, (model, head)) in enumerate(networks.items()):
        x, y = images(number, rng)
        clients.append(fedexperts.Client(name, (x[:200], y[:200]), (x[200:], y[200:]), model, head))
    task = fedexperts.Task.of_clients(clients, common_model=narrow, name="hospitals")
    how = {"rounds": rounds, "batch_size": 32, "optimizer": "adam", "lr": 0.003}
    runs = {method: fedexperts.run(method, task, **how) for method in ("fedmoe", "standalone")}
    for method, run in runs.items():
        found = zip(task.client_names, run.figures["selected"].clients, strict=True)
        print(f"{method}:", ", ".join(f"{name} {100 * accuracy:.1f} %" for name, accuracy in found))


if __name__ == "__main__":
    main()
