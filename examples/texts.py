"""Offices that sort messages, each with words and habits of its own, read from a folder for each office.

`python examples/texts.py` takes some seconds. The same on the command line, with folders of your own:
`fedexperts run fedper --data offices/ --optimizer adam --lr 0.03`.
"""

import csv
import tempfile
from pathlib import Path

import numpy as np

import fedexperts

TOPICS = {
    "delivery": ["parcel", "courier", "late", "address", "tracking", "box"],
    "payment": ["invoice", "card", "refund", "charged", "bank", "price"],
    "account": ["password", "login", "email", "locked", "profile", "code"],
}
ALL = [word for words in TOPICS.values() for word in words]
OFFICES = {"oslo": (6, 1, 1), "rome": (1, 6, 1), "lima": (1, 1, 6)}  # how often each topic comes up there
FILLERS = ["please", "help", "with", "my", "the", "it", "is", "again", "today", "thanks", "since", "not", "yet"]


def write(path: Path, office: str, lines: int, rng: np.random.Generator) -> None:
    """A file as you may have it: a text and a label in every line."""
    often = np.array(OFFICES[office]) / sum(OFFICES[office])
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for topic in rng.choice(list(TOPICS), lines, p=often):
            words = [*rng.choice(TOPICS[topic], 2), *rng.choice(FILLERS, 5), rng.choice(ALL)]
            table.writerow([" ".join(rng.permutation(words)).capitalize() + ".", topic])


def main(rounds: int = 20) -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for office in OFFICES:
            place = Path(folder, "offices", office)
            place.mkdir(parents=True)
            write(place / "train.csv", office, 120, rng)
            write(place / "test.csv", office, 60, rng)
        task = fedexperts.Task.of(data=f"{folder}/offices/")
        for method in ("standalone", "fedavg", "fedper"):
            result = fedexperts.run(method, task, rounds=rounds, optimizer="adam", lr=0.03)
            print(f"{method}: {100 * result.figures['selected'].mean:.1f} %")
        asked = "Charged twice, and the parcel is late."
        for office in OFFICES:
            [answer] = result.predict(office, [asked])
            print(f"{office}: {task.dataset.class_names[answer.argmax()]} ({100 * answer.max():.0f} %)")


if __name__ == "__main__":
    main()
