"""`fedexperts` for a process that dies, lingers, or has a full disk at a chosen point: python mortal.py POINT FLAG …

It does so once, if the file FLAG is there: that goes away first, so that the next life gets by. One that lingers does
so until the file is there again.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedexperts.cli import main
from fedexperts.engine.fit import Fit
from fedexperts.federation import coordinator, vault
from fedexperts.federation.checks import Inspector
from fedexperts.federation.coordinator import Coordinator
from fedexperts.federation.spool import Spool
from fedexperts.federation.vault import Vault

POINTS: dict[str, tuple[Any, str]] = {
    "training": (Fit, "step"),  # in the middle of it
    "half-kept": (vault, "write_atomically"),  # the files are written, the manifest is not
    "kept": (Vault, "_clear"),  # trained and saved, not yet replied
    "serving": (Spool, "read"),  # a peer waits for it
    "taking": (Inspector, "_values"),  # the server, with some replies in
    "complete": (coordinator, "write_manifest"),  # the server, with a round done but not saved
    "between": (Coordinator, "step"),  # the server, with a round saved and the next not begun
    "slow": (Fit, "step"),
    "full": (Vault, "keep"),  # nothing of any size can be written
}


@contextmanager
def no_room() -> Iterator[None]:
    """The system lets nobody write more than a few bytes into a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def dies(point: str, flag: Path, times: int) -> Callable[..., Any]:
    owner, name = POINTS[point]
    original, calls = getattr(owner, name), 0

    def instead(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > times and flag.exists():
            flag.unlink()
            if point == "slow":
                while not flag.exists():
                    time.sleep(0.05)
                flag.unlink()
            elif point == "full":
                with no_room():
                    return original(*args, **kwargs)
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, instead)
    return instead


if __name__ == "__main__":
    point, flag, times, *words = sys.argv[1:]
    dies(point, Path(flag), int(times))
    sys.argv = ["fedexperts", *words]
    main()
