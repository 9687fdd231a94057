"""A site's own state on its own disk: what it keeps of a run, and what it last answered.

Files are never written over; a manifest that is replaced atomically names those that count. Whenever the process dies,
the site is as it was before a step or as it is after one, and a step that it is asked for again has its answer here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedexperts.engine.saved import Record, check_file, read_tensors, write_bytes, write_tensors
from fedexperts.errors import SavedStateError
from fedexperts.federation.envelope import Scores, Task, digest
from fedexperts.files import write_atomically
from fedexperts.methods import State

MANIFEST = "site.json"


class Given(NamedTuple):
    """An answer that was given, and to what."""

    round: int
    request: str  # its digest
    answer: Record


class Evaluated(NamedTuple):
    """A client as it was evaluated last, and how it did in all rounds."""

    round: int
    tensors: Mapping[str, State]
    message: bytes  # what the server sent for it
    scores: Mapping[int, Scores]


class Vault:
    """One run of one client. Of the run's rounds only the state of the last one, and of the last evaluated, is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._content: dict[str, Any] = self._read()

    def _read(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        if not path.exists():
            return {"plan": "", "reading": "", "trained": 0, "settled": 0, "tensors": {}, "given": {}, "evaluated": {}}
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise SavedStateError(f"{path} is cut off or damaged; restore it from a copy") from None
        return content

    @property
    def plan(self) -> str:
        """The plan that the run was opened with; empty, if it was not."""
        return str(self._content.get("plan", ""))

    @property
    def reading(self) -> str:
        """How all sites of the run read their data, where they had to agree."""
        return str(self._content.get("reading", ""))

    def open(self, plan: str, reading: str, tensors: Mapping[str, State]) -> None:
        """What a run is, before its first step."""
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = digest(plan.encode())[:12]
        records = {kind: write_tensors(self.folder, f"{kind}-{mark}.safetensors", own) for kind, own in tensors.items()}
        tensors = self._content["tensors"] | records
        self._write({"plan": plan, "reading": reading, "tensors": tensors, "evaluated": {}})

    @property
    def before(self) -> str:
        """The run that this one began with, if it did with any."""
        return str(self._content.get("before", ""))

    def begin(self, before: str, tensors: Mapping[str, State]) -> None:
        """The run goes on from another: what it has of that."""
        records = {kind: write_tensors(self.folder, f"{kind}-before.safetensors", own) for kind, own in tensors.items()}
        self._write({"before": before, "tensors": self._content["tensors"] | records})

    @property
    def trained(self) -> int:
        """The last round that the client has trained in."""
        return int(self._content["trained"])

    @property
    def settled(self) -> int:
        """The last round in which it has adopted from peers, or had none to adopt from."""
        return int(self._content["settled"])

    def tensors(self, kind: str) -> State | None:
        """What is kept under a name: the client's own, what it remembers, what it last heard."""
        record = self._content["tensors"].get(kind)
        return None if record is None else read_tensors(self.folder, record)

    @property
    def evaluated(self) -> int:
        """The last round in which the client was evaluated."""
        return int(self._evaluated.get("round", 0))

    @property
    def outdated(self) -> bool:
        """Whether all that is here was kept by a version that did not keep what was evaluated."""
        return "evaluated" not in self._content

    @property
    def _evaluated(self) -> dict[str, Any]:
        return dict(self._content.get("evaluated", {}))

    def as_evaluated(self) -> Evaluated | None:
        """The client as it was last evaluated, if it was; read anew where another process has replaced it meanwhile."""
        while found := self._evaluated:
            try:
                return Evaluated(
                    found["round"],
                    {kind: read_tensors(self.folder, record) for kind, record in found["tensors"].items()},
                    check_file(self.folder, found["message"]),
                    {int(number): Scores(**scores) for number, scores in found["scores"].items()},
                )
            except (SavedStateError, FileNotFoundError):
                before, self._content = self._content, self._read()
                if self._content == before:
                    raise
        return None

    def answer(self, task: Task, round_number: int, request: bytes) -> bytes | None:
        """The answer that this very request was given before, if it was."""
        found = self._given(task)
        if found is None or (found.round, found.request) != (round_number, digest(request)):
            return None
        return check_file(self.folder, found.answer)

    def answered(self, task: Task) -> int:
        """The last round in which this was asked and answered."""
        found = self._given(task)
        return 0 if found is None else found.round

    def _given(self, task: Task) -> Given | None:
        return Given(*found) if (found := self._content["given"].get(task)) else None

    def keep(
        self,
        task: Task,
        round_number: int,
        request: bytes,
        answer: bytes,
        tensors: Mapping[str, State],
        trained: int,
        settled: int,
        scores: Scores | None = None,
        message: bytes = b"",
    ) -> None:
        """A step is over: its state and its answer become what counts, in one moment.

        `scores`: how the client did, if it was evaluated, with what the server sent for it (`message`).
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = f"{round_number:06}-{task}"
        records = {kind: write_tensors(self.folder, f"{kind}-{mark}.safetensors", own) for kind, own in tensors.items()}
        records = self._content["tensors"] | records
        given = Given(round_number, digest(request), write_bytes(self.folder, f"answer-{mark}", answer))
        evaluated = self._evaluated
        if scores is not None:
            evaluated = {
                "round": round_number,
                "tensors": records,  # files are never written over: these stay as they are
                "message": write_bytes(self.folder, f"message-{mark}", message),
                "scores": evaluated.get("scores", {}) | {str(round_number): scores.model_dump()},
            }
        self._write(
            {
                "trained": trained,
                "settled": settled,
                "tensors": records,
                "given": self._content["given"] | {task: given},
                "evaluated": evaluated,
            }
        )

    def _write(self, changes: dict[str, Any]) -> None:
        self._content = self._content | changes
        write_atomically(self.folder / MANIFEST, json.dumps(self._content))
        self._clear()

    def _clear(self) -> None:
        """Take away what no longer counts."""
        evaluated = self._evaluated
        counts = [*self._content["tensors"].values(), *evaluated.get("tensors", {}).values()]
        counts += [Given(*given).answer for given in self._content["given"].values()]
        counts += [evaluated["message"]] if evaluated else []
        named = {MANIFEST, *(record["file"] for record in counts)}
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink()
