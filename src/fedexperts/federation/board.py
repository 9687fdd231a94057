"""Where a federation stands, in a file that anybody on the server's machine can look at while it runs."""

import json
import time
from pathlib import Path
from typing import Any

from fedexperts.files import write_atomically

STATUS = "status.json"


class Board:
    """What is known now, written whenever it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = {}

    def note(self, **known: Any) -> None:
        self.known |= known
        write_atomically(self.path, json.dumps(self.known | {"at": time.time()}, indent=1))

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        """Nothing where no server has written anything yet."""
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return known
