"""What a pool of personal heads tells everyone about its owners: `python examples/what_modules_tell.py RUN`.

RUN is the folder of a PM-MoE run over a base whose personal module is a linear head (FedPer, FedRep, FedBABU …). The
attacker is any client: it has the pool and the shared parts, so it has everyone's complete model.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

import fedexperts


def main(folder: Path) -> None:
    run = fedexperts.load(folder)
    given = run.simulation.server["present.modules"].cpu().numpy()
    biases, counts = run.simulation.server["pool.bias"].cpu().numpy()[given], run.record.counts[given]
    mixes = counts / counts.sum(axis=1, keepdims=True)
    found = (biases.argmax(axis=1) == mixes.argmax(axis=1)).sum()
    print(f"most frequent class, by the largest bias: right for {found} of {len(mixes)} clients")
    held = mixes > 0.05
    known = [roc_auc_score(own, bias) for own, bias in zip(held, biases, strict=True) if 0 < own.sum() < len(own)]
    print(f"classes with more than 5 % of a client's samples, by the bias: AUC {np.mean(known):.2f} (by chance 0.5)")

    base = fedexperts.load(run.simulation.method.options.from_ or folder / "before")
    dataset, areas = run.simulation.task.dataset, []
    for client in np.flatnonzero(given):
        own = run.simulation.task.clients[client]
        samples = np.concatenate([own.train, own.test])
        probabilities = base.predict(client, dataset.inputs[samples])
        confidence = probabilities[np.arange(len(samples)), dataset.labels[samples]]
        areas.append(roc_auc_score(np.arange(len(samples)) < len(own.train), confidence))
    print(f"whether a sample was trained with, by how sure the owner's model is: AUC {np.mean(areas):.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
