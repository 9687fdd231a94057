"""Weights & Biases, online or, with WANDB_MODE=offline, in files that `wandb sync` sends later."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedexperts.config import Settings
from fedexperts.trackers.tracker import Note, Tracker, hyperparameters


class WandB(Tracker):
    """Configuration, history, and at the end the summary and the page; who is asked to log in is told by wandb."""

    name = "wandb"
    keeps = True

    def __init__(self, project: str = "fedexperts", folder: str | Path | None = None) -> None:
        """`folder`: where wandb puts its folder `wandb` (default: its own, the present one)."""
        super().__init__()
        self.project = project
        self.folder = folder

    def open(self, title: str, settings: Settings, folder: Path | None, before: Note) -> Note:
        import wandb

        self._run = wandb.init(
            project=self.project,
            name=str(folder or settings.method),
            notes=title,
            config=hyperparameters(settings),
            id=before.run,
            resume=None if before.run is None else "allow",
            dir=self.folder,
            reinit="create_new",
        )
        return Note(self._run.id, before.rounds)

    def write(self, round_number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round_number)

    def conclude(self, rounds: int, figures: Mapping[str, float]) -> None:
        self._run.summary.update(dict(figures))

    def keep(self, files: Sequence[Path]) -> None:
        import wandb

        folder = wandb.Artifact(f"run-{self._run.id}", type="run")
        for file in files:
            folder.add_file(str(file))
        self._run.log_artifact(folder)

    def close(self, reason: BaseException | None = None) -> None:
        self._run.finish(exit_code=0 if reason is None else 1)
