"""Tools in which people follow their experiments, as observers of a run."""

from fedexperts.errors import SettingsError, suggestion
from fedexperts.trackers.mlflow import MLflow
from fedexperts.trackers.tensorboard import TensorBoard
from fedexperts.trackers.tracker import Tracker
from fedexperts.trackers.wandb import WandB

KNOWN: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB", "trackers"]


def trackers(names: str | None) -> list[Tracker]:
    """Those of `--track tensorboard,mlflow`, each as it is without settings."""
    chosen = names.split(",") if names else []
    for name in chosen:
        if name not in KNOWN:
            raise SettingsError(f"no tracker '{name}'{suggestion(name, KNOWN)} (there are: {', '.join(KNOWN)})")
    return [KNOWN[name]() for name in dict.fromkeys(chosen)]
