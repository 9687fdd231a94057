"""Before the first round: whom the server has before it, which models they run, and what it begins with itself.

What sites have told is kept in the run's folder: a server that is started again does not ask twice.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from fedexperts.config import Frozen, Settings
from fedexperts.engine.member import drawn, first_of_each, fitting
from fedexperts.errors import FederationError, FedExpertsError
from fedexperts.federation.carrier import Carrier
from fedexperts.federation.checks import Limits, check_values, kind_of
from fedexperts.federation.envelope import (
    OWN_MODEL,
    Answer,
    ClientNumber,
    Plan,
    Profile,
    PublicSpec,
    Request,
    RequestHead,
    Task,
)  # fmt: skip
from fedexperts.federation.reading import Reading, Told, agreed
from fedexperts.files import write_atomically
from fedexperts.methods import Message, Method, State
from fedexperts.models import Outline, OwnModel, is_place, smallest
from fedexperts.task import ClientSpec

log = logging.getLogger(__name__)

ANY_MODEL = "auto"
"""In the place of a run's models: one of ours for such data as the sites have."""
READING, MODELS, START = "reading.json", "models.json", "start.message"


class Models(Frozen):
    """What sites have told of models of their own, by their clients' numbers."""

    of: dict[ClientNumber, Outline] = Field(default_factory=dict)


class Meeting:
    """The sites of a run and its server, before anything is trained."""

    def __init__(
        self, run: str, method: Method, settings: Settings, sites: Sequence[str], carrier: Carrier, folder: Path
    ) -> None:
        """`folder`: where what was told is kept."""
        self.run = run
        self.method = method
        self.settings = settings
        self.sites = sites
        self.carrier = carrier
        self.folder = folder
        self.agreed: Reading | None = None

    def plan(self, client: ClientSpec) -> Plan:
        """The run as one site gets to know it."""
        settings = self.settings.defining()
        if self.method.begins() is not None:  # where that run lies is not the sites' affair
            settings["options"] = self.method.in_use()
        return Plan(run=self.run, settings=settings, client=PublicSpec.of(client.public))

    def reading(self, profiles: Mapping[int, Profile], seconds: float) -> Reading | None:
        """How all sites read their data, where they have their own and must agree; else they know it by themselves."""
        known = [self.sites[client] for client, profile in profiles.items() if profile.reading]
        own = [self.sites[client] for client, profile in profiles.items() if not profile.reading]
        if known and own:
            raise FederationError(
                f"{', '.join(known)} have shares of a set that all know, {', '.join(own)} data of their own; a run is "
                "for one or the other"
            )
        saved = self.folder / READING
        if own and not saved.exists():
            told: dict[int, Told] = {}

            def take(client: int, answer: Answer) -> None:
                if (found := answer.head.told) is None:
                    raise FederationError("it does not tell how its data are read")
                if found.sums is not None and found.sums.count != profiles[client].samples:
                    raise FederationError(f"sums of {found.sums.count} rows, where it has {profiles[client].samples}")
                told[client] = found

            asked = {client: RequestHead(task=Task.TELL, client=client) for client in profiles}
            self._insist(asked, seconds, take)
            write_atomically(saved, agreed(told, self.sites, self.settings).model_dump_json())
        self.agreed = Reading.model_validate_json(saved.read_text(encoding="utf-8")) if own else None
        return self.agreed

    def clients(self, profiles: Mapping[int, Profile], seconds: float) -> tuple[list[ClientSpec], str]:
        """The clients that the sites are, each with its model; and what is to be said about that.

        A site runs the model that its operator chose. To the others the run's models go in turn.
        """
        models, common = self.settings.model, self.settings.common_model
        if code := [name for name in filter(None, (*models, common)) if is_place(name)]:
            raise FederationError(
                f"model {code[0]}: a run cannot name code for its sites; a site's operator does: `fedexperts site … "
                f"--model {code[0]}`, or `model` in site.toml"
            )
        self._alike(profiles)
        dataset = self.agreed.dataset if self.agreed else profiles[0]
        models = (smallest(dataset.shape),) if models == (ANY_MODEL,) else models
        specs = [
            ClientSpec(
                id=client,
                model=profiles[client].model or models[client % len(models)],
                shape=dataset.shape,
                classes=dataset.classes,
                samples=profiles[client].samples,
                label_counts=(1,) * dataset.classes,  # for methods that ask: the true ones only the site knows
                clients=len(profiles),
                name=self.sites[client],
                common=common,
            )
            for client in sorted(profiles)
        ]
        outlines = self._outlines([spec for spec in specs if spec.model == OWN_MODEL], seconds)
        own = {client: OwnModel(OWN_MODEL, outline) for client, outline in outlines.items()}
        specs = [replace(spec, model=own.get(spec.id, spec.model)) for spec in specs]
        try:
            fitted, note = fitting(self.method, specs, common or models[-1])
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            if not own:
                raise
            raise FederationError(
                f"{self.method.name} cannot be laid out with what {', '.join(self.sites[k] for k in own)} say of their "
                f"models ({type(error).__name__}: {error})"
            ) from error
        if note and (chosen := [f"{self.sites[k]} {p.model}" for k, p in sorted(profiles.items()) if p.model]):
            raise FederationError(
                f"{self.method.name} needs one model for all clients, and these sites run what their operators chose: "
                f"{', '.join(chosen)}; choose models that are alike, or a method in which models are private"
            )
        return fitted, note

    def _alike(self, profiles: Mapping[int, Profile]) -> None:
        """An error where sites that know by themselves how their data are read do not read them alike."""
        first = profiles[0]
        for client, profile in profiles.items() if self.agreed is None else ():
            if any(getattr(profile, name) != getattr(first, name) for name in ("shape", "classes", "reading")):
                raise FederationError(
                    f"{self.sites[client]} and {self.sites[0]} do not read their data alike: samples of shape "
                    f"{profile.shape} and {first.shape}, {profile.classes} and {first.classes} classes; names of "
                    "classes, words and columns must be the same too"
                )

    def _outlines(self, clients: Sequence[ClientSpec], seconds: float) -> Mapping[int, Outline]:
        """What sites tell of their own models."""
        saved = self.folder / MODELS
        found = Models.model_validate_json(saved.read_text(encoding="utf-8")).of if saved.exists() else {}

        def take(client: int, answer: Answer) -> None:
            if answer.head.outline is None:
                raise FederationError("it does not say what its model looks like")
            found[client] = answer.head.outline
            write_atomically(saved, Models(of=found).model_dump_json())

        asked = {
            c.id: RequestHead(task=Task.MODEL, plan=self.plan(c), reading=self.agreed)
            for c in clients
            if c.id not in found
        }
        self._insist(asked, seconds, take)
        return found

    def start(self, clients: Sequence[ClientSpec], seconds: float, limits: Limits) -> State:
        """What the server has before the first round.

        It is drawn from the seed with the first client's model. Where that is the site's own, the site does it.
        """
        first = first_of_each(clients)
        expected = drawn(self.method, first, self.settings)
        if str(first[0].model) != OWN_MODEL:
            return expected
        saved = self.folder / START

        def take(client: int, answer: Answer) -> None:
            message = Message.from_bytes(answer.payload) if answer.payload else Message()
            check_values(message, limits)
            found, wanted = ({n: kind_of(t) for n, t in state.items()} for state in (message.tensors, expected))
            if found != wanted or message.numbers:
                different = sorted(name for name in found.keys() | wanted if found.get(name) != wanted.get(name))
                raise FederationError(f"the beginning that it drew is not of this run: {', '.join(different)[:200]}")
            write_atomically(saved, answer.payload)

        if not saved.exists():
            plan, specs = self.plan(first[0]), tuple(PublicSpec.of(spec.public) for spec in first)
            head = RequestHead(task=Task.START, plan=plan, reading=self.agreed, first=specs)
            self._insist({first[0].id: head}, seconds, take)
        raw = saved.read_bytes()
        return dict(Message.from_bytes(raw).tensors) if raw else {}

    def _insist(self, asked: Mapping[int, RequestHead], seconds: float, take: Callable[[int, Answer], None]) -> None:
        """Ask until all have answered: a run cannot begin without. A site that will not ends it."""
        missing = dict(asked)
        while missing:
            log.info("waiting for %s", ", ".join(self.sites[client] for client in missing))
            requests = {client: Request(head).to_bytes() for client, head in missing.items()}
            for client, raw in self.carrier.ask(requests, seconds):
                try:
                    take(client, _willing(raw))
                except FedExpertsError as error:
                    raise FederationError(f"{self.sites[client]}: {error}") from None
                del missing[client]


def _willing(raw: bytes) -> Answer:
    answer = Answer.from_bytes(raw)
    if answer.head.refused:
        raise FederationError(f"it refuses: {answer.head.refused}")
    return answer
