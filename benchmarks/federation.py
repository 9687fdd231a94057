"""What a network costs: rounds of a server and three sites as processes over TLS, beside the simulation of the same.

`python benchmarks/federation.py` prints a table; run it on a machine that does nothing else.
"""

import tempfile
from pathlib import Path

from fedexperts import api
from fedexperts.federation.demo import started
from fedexperts.federation.runs import queue
from fedexperts.federation.service import follow
from fedexperts.measure import Record

ROUNDS = 10
METHODS: dict[str, dict[str, object]] = {"fedavg": {}, "fedmoe": {}, "fedmoe-da": {"asked": 1, "start": "own"}}


def main() -> None:
    print("| method | simulation, s a round | federation, s a round | up, MB | down, MB | between peers, MB | same |")
    print("|---|--:|--:|--:|--:|--:|---|")
    with tempfile.TemporaryDirectory() as place, started(Path(place) / "town") as data:
        for method, options in METHODS.items():
            values = {**data, "rounds": ROUNDS, "lr": 0.05, **options}
            run = queue(Path(place) / "town", method, values, None)
            for _ in follow(Path(place) / "town", run):
                pass
            there = Record.load(run)
            here = api.execute(there.settings).record
            seconds = [f"{record.seconds / ROUNDS:.2f}" for record in (here, there)]
            size = [f"{there.totals[f'{way}_bytes'] / ROUNDS / 1e6:.2f}" for way in ("up", "down", "peer")]
            same = "yes" if list(here.rows) == list(there.rows) else "no"
            print("|", " | ".join([here.title, *seconds, *size, same]), "|", flush=True)


if __name__ == "__main__":
    main()
