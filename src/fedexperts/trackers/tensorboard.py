"""TensorBoard: event files in a folder."""

from collections.abc import Mapping
from pathlib import Path

from fedexperts.config import Settings
from fedexperts.errors import SettingsError
from fedexperts.trackers.tracker import Note, Tracker, hyperparameters

SELECTED = "figures/selected"


class TensorBoard(Tracker):
    """Scalars, and the settings as hyperparameters; `tensorboard --logdir FOLDER` shows them."""

    name = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        """`folder`: for one run's event files (default: `tensorboard` in the run's own folder)."""
        super().__init__()
        self.folder = None if folder is None else Path(folder)

    def open(self, title: str, settings: Settings, folder: Path | None, before: Note) -> Note:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        place = self.folder or (folder and folder / "tensorboard")
        if place is None:
            raise SettingsError("TensorBoard needs a folder: TensorBoard(folder), or give the run one with out=")
        known = str(place.absolute())
        rounds = before.rounds if before.run == known and any(place.glob("events.out.tfevents.*")) else 0
        self._writer = SummaryWriter(place, purge_step=rounds + 1)  # what comes after is not shown any more
        for summary in hparams(hyperparameters(settings), {SELECTED: 0.0}):
            self._writer._get_file_writer().add_summary(summary)
        self._writer.add_text("method", title)
        return Note(known, rounds)

    def write(self, round_number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round_number)
        self._writer.flush()

    def close(self, reason: BaseException | None = None) -> None:
        self._writer.close()
