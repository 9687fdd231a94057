"""Clinics with rows of measurements: a shared network with a head of each clinic's own, and a clinic that joins later.

`python examples/tables.py` takes some seconds. Columns may have any scale. Put your own arrays into `clinics`.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedexperts

CLASSES = ("malignant", "benign")


def clinics() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """569 biopsies with 30 measurements each, over four clinics: the larger the tumour, the further to the south."""
    cancer = load_breast_cancer()
    order = np.argsort(cancer.data[:, 0] + np.random.default_rng(0).normal(0, 2, len(cancer.data)))
    parts = np.array_split(order, 4)
    return {name: (cancer.data[own], cancer.target[own]) for name, own in zip(("n", "e", "w", "s"), parts, strict=True)}


def client(name: str, rows: np.ndarray, labels: np.ndarray, model: str) -> fedexperts.Client:
    """Every fourth row is for testing; which rows choose the best round is drawn from the others."""
    test = np.arange(len(rows)) % 4 == 0
    return fedexperts.Client(name, (rows[~test], labels[~test]), (rows[test], labels[test]), model)


def main(rounds: int = 20) -> None:
    data = clinics()
    late = data.pop("s")
    clients = [client(name, *rows, model="mlp") for name, rows in data.items()]
    task = fedexperts.Task.of_clients(clients, class_names=CLASSES, name="clinics")
    result = fedexperts.run("fedper", task, rounds=rounds, batch_size=16)
    alone = fedexperts.run("standalone", task, rounds=rounds, batch_size=16)
    print(f"together {100 * result.figures['selected'].mean:.1f} %, alone {100 * alone.figures['selected'].mean:.1f} %")

    joined = result.adapt(client("s", *late, model="mlp"), rounds=10)
    print(f"s joined and trained its {', '.join(joined.trained)}: {100 * joined.figures['last'].mean:.1f} %")
    with tempfile.TemporaryDirectory() as folder:
        joined.export(Path(folder) / "s")
        model = fedexperts.load_exported(Path(folder) / "s")  # needs nothing of the run
        for probabilities in model.predict(late[0][:3]):
            print(", ".join(f"{name} {p:.2f}" for name, p in zip(model.class_names, probabilities, strict=True)))


if __name__ == "__main__":
    main()
