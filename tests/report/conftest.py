"""Records of made-up runs: plausible rows, generated, the same in every test."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fedexperts.config import Settings
from fedexperts.measure import COLUMNS, Record, Row

MakeRecord = Callable[..., Record]
TITLES = {"fedavg": "FedAvg", "fedmoe": "FedMoE", "standalone": "Standalone"}
LEVEL = {"fedavg": 0.70, "fedmoe": 0.92, "standalone": 0.86}


def made_up(
    method: str = "fedavg",
    *,
    title: str | None = None,
    clients: int = 10,
    classes: int = 10,
    rounds: int = 40,
    level: float | None = None,
    peer_bytes: int = 0,
    notes: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    environment: dict[str, str] | None = None,
    **settings: object,
) -> Record:
    """A run that climbs to about `level`; all is a function of the arguments."""
    rng = np.random.default_rng([len(method), clients, rounds])
    own = (LEVEL.get(method, 0.8) if level is None else level) + rng.normal(0, 0.05, clients)
    samples = 20 + np.arange(clients) % 7
    rows: list[Row] = []
    for number in range(1, rounds + 1):
        progress = 1 - np.exp(-5 * number / rounds)
        test = np.clip(own * progress + rng.normal(0, 0.01, clients), 0, 1)
        validation = np.clip(test + rng.normal(0, 0.02, clients), 0, 1)
        for client in range(clients):
            row: Row = dict.fromkeys(COLUMNS, 0)
            sent = 0 if method == "standalone" else 400_000
            row |= {
                "round": number,
                "client": client,
                "train_loss": float(2.3 * (1.05 - progress)),
                "validation_accuracy": float(validation[client]),
                "validation_samples": 10,
                "test_accuracy": float(test[client]),
                "test_samples": int(samples[client]),
                "up_bytes": sent,
                "down_bytes": 2 * sent,
                "peer_bytes": peer_bytes,
                "flops": 3_000_000_000,
            }
            rows.append(row)
    return Record(
        settings=Settings.check({"method": method, "clients": clients, "rounds": rounds, **settings}),
        title=title or TITLES.get(method, method),
        rows=rows,
        counts=np.random.default_rng(0).integers(0, 40, (clients, classes))
        * (np.indices((clients, classes)).sum(0) % 3),
        class_names=class_names or [str(c) for c in range(classes)],
        notes=notes,
        environment=environment or {"torch": "2.13.0", "device": "cpu (x86_64)"},
        seconds=12.5,
    )


@pytest.fixture
def make_record() -> MakeRecord:
    return made_up


@pytest.fixture
def three() -> list[Record]:
    """FedAvg below Standalone below FedMoE, in no order."""
    return [
        made_up("fedavg", notes=["fedavg needs one model for all clients: all run cnn5"]),
        made_up("standalone"),
        made_up("fedmoe"),
    ]
