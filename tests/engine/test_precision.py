"""Rounder arithmetic: accuracy stays within what a test set of this size can tell."""

import statistics

import pytest
import torch

from fedexperts.api import run

SEEDS = (0, 1, 2)
TESTED = 359  # images that all clients test with, a fifth of the digits
NOISE = 100 * (0.25 / TESTED) ** 0.5
"""Standard error, in points, of a score of one half on so many."""
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def accuracies(method: str, device: str, precision: str) -> list[float]:
    """With each seed, in percent."""
    task = {"data": "digits", "clients": 6, "partition": "dirichlet", "alpha": 0.5}
    values = {"rounds": 6, "batch_size": 32, "lr": 0.1, "evaluate_every": 6, "device": device, "precision": precision}
    results = (run(method, seed=seed, **task, **values) for seed in SEEDS)
    return [100 * result.record.figures["last"].mean for result in results]


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("cpu", "bfloat16"),
        pytest.param("cuda", "bfloat16", marks=needs_cuda),
        pytest.param("cuda", "tf32", marks=needs_cuda),
    ],
)
def test_accuracy_stays_within_noise(device: str, precision: str) -> None:
    exact, rough = (accuracies("fedmoe", device, kind) for kind in ("float32", precision))
    assert statistics.mean(exact) > 50, "it has learned something"
    assert all(abs(other - one) < NOISE for one, other in zip(exact, rough, strict=True)), (exact, rough)
