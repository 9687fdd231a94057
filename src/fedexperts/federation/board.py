"""Where a federation stands, in a file that anybody on the server's machine can look at while it runs."""

import json
import os
import time
from pathlib import Path
from typing import Any

STATUS = "status.json"


class Board:
    """What is known now, written whenever it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = {}

    def note(self, **known: Any) -> None:
        self.known |= known
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps(self.known | {"at": time.time()}, indent=1), encoding="utf-8")
        os.replace(new, self.path)  # whole for whoever reads it; it need not outlive a crash

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        """Nothing where no server has written anything yet."""
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return known
