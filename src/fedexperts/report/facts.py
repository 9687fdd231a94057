"""What was run, in words."""

from collections.abc import Sequence

from fedexperts.config import Settings
from fedexperts.report.runs import Run, listed


def title(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs]
    data = listed(list(dict.fromkeys(run.record.settings.data for run in runs)))
    if len(names) > 4:
        return f"{len(names)} runs on {data}"
    return f"{listed(names)} on {data}"


def facts(settings: Sequence[Settings]) -> dict[str, str]:
    """What was run; where runs differ, every value."""
    described = [_describe(one) for one in settings]
    return {name: " / ".join(dict.fromkeys(facts[name] for facts in described)) for name in described[0]}


def _describe(settings: Settings) -> dict[str, str]:
    return {
        "data": settings.data + (f", {settings.samples:,} samples" if settings.samples else ""),
        "partition": partition(settings),
        "clients": str(settings.clients),
        "models": ", ".join(settings.model),
        "rounds": str(settings.rounds),
        "clients sampled in a round": f"{100 * settings.participation:g} %",
        "local epochs": str(settings.epochs),
        "local training": f"{settings.optimizer}, learning rate {settings.lr:g}, batch {settings.batch_size}",
        "seed": str(settings.seed),
    }


def partition(settings: Settings) -> str:
    alpha = f"Dirichlet α = {settings.alpha:g}"
    size = f", {settings.samples_per_client} samples each" if settings.samples_per_client else ""
    kinds = {
        "homogeneous": "homogeneous",
        "pathological": f"pathological, {settings.classes_per_client} classes per client, "
        + ("equal counts" if settings.balanced else f"{alpha} counts"),
        "dirichlet": alpha,
        "own": "none, each client brought its own data",
        "dirichlet-shared": f"{alpha}, {100 * settings.shared_ratio:g} % of each class shared evenly",
    }
    drift = f", {settings.drift} drift through {settings.phases} phases" if settings.drift != "none" else ""
    return kinds[settings.partition] + size + drift
