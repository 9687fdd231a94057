"""What a site has ready for its peers: a file for each thing that can be asked for, in a folder per version."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedexperts.errors import FederationError
from fedexperts.federation.envelope import Name, Version, What, digest

VERSIONS = 4
"""Of so many, the newest, a peer that is late can still be served."""
_NAME, _VERSION, _WHAT = TypeAdapter(Name), TypeAdapter(Version), TypeAdapter(What)


class Spool:
    """Filled by the training step, read by the peers' service, which may be another process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, run: str, version: str, things: Mapping[str, bytes]) -> dict[str, str]:
        """Make a version ready, all of it in one moment; what → its digest."""
        target = self._place(run, version)
        new = target.with_name(f"new.{os.getpid()}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        for what, raw in things.items():  # not forced to the disk: what a crash spoils has another digest
            (new / what).write_bytes(raw)
        shutil.rmtree(target, ignore_errors=True)  # the same version, from a step that died
        os.replace(new, target)
        for old in sorted(path for path in target.parent.iterdir() if not path.name.startswith("new."))[:-VERSIONS]:
            shutil.rmtree(old)
        return {what: digest(raw) for what, raw in things.items()}

    def read(self, run: str, version: str, what: str) -> bytes:
        """A thing, if there is one of that name; a name is never a way to another place on the disk."""
        place = self._place(run, version)
        try:
            return (place / _WHAT.validate_python(what)).read_bytes()
        except (ValidationError, FileNotFoundError, NotADirectoryError):
            raise FederationError(f"there is no {what[:80]!r} of {version} of run {run}") from None

    def _place(self, run: str, version: str) -> Path:
        try:
            return self.folder / _NAME.validate_python(run) / _VERSION.validate_python(version)
        except ValidationError:
            raise FederationError(f"{run[:80]!r}, {version[:80]!r} are not a run and a version") from None
