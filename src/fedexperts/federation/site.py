"""A site: it receives, trains and replies, with its own data and state. Who carries the bytes is not its affair."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch

from fedexperts.errors import FederationError, FedExpertsError
from fedexperts.federation.envelope import Answer, AnswerHead, Plan, Profile, PublicSpec, Request, RequestHead, Task
from fedexperts.federation.holding import Holding
from fedexperts.federation.local import Fetch, Local, Noise, unknowable
from fedexperts.federation.own_model import said
from fedexperts.federation.reading import Reading
from fedexperts.federation.spool import Spool
from fedexperts.federation.steps import MEMORY, OWN, START, Step, packed
from fedexperts.federation.vault import Vault
from fedexperts.measure import STATE
from fedexperts.methods import Message, State
from fedexperts.models import ModelRef

log = logging.getLogger(__name__)

SPOOL = "spool"


class Site:
    """Every request has one answer: a step asked for again is not done again, and one that may not be is refused."""

    def __init__(
        self,
        folder: Path,
        holding: Holding,
        fetch: Fetch,
        address: str = "",
        own: Mapping[str, str] | None = None,
        leaves: Collection[str] | None = None,
        least_noise: float = 0.0,
        noise: Noise = unknowable,
        model: ModelRef | None = None,
    ) -> None:
        """`address`: where peers find this site's spool; `own`: its settings of where and how to compute.

        `leaves`: the parts that its operator lets leave, if that is not all that methods say. `least_noise`: the least
        that a run must put on them, whatever the server plans; `noise`: where it comes from. `model`: the one that the
        operator chose; without it the site runs what a plan names of ours.
        """
        self.folder = folder
        self.holding = holding
        self.spool = Spool(folder / SPOOL)
        self._fetch = fetch
        self._address = address
        self._own = own or {}
        self._leaves = leaves
        self._least_noise = least_noise
        self._noise = noise
        self._model = model
        self._locals: dict[str, Local] = {}  # the present run's; what counts is on disk

    def answer(self, raw: bytes) -> bytes:
        """Do what is asked, or say why not."""
        asked = AnswerHead()
        try:
            request = Request.from_bytes(raw)
            run = request.head.plan.run if request.head.plan else ""
            asked = AnswerHead(task=request.head.task, round=request.head.round, run=run)
            return self._do(request, raw)
        except FedExpertsError as error:
            reason = str(error)
        except OSError as error:  # a disk that is full
            reason = f"{error.filename or 'the disk'}: {error.strerror or error}"
        except Exception as error:  # whatever a server sends, the site stays
            log.exception("a request could not be done")
            reason = f"{type(error).__name__} in doing it; the site's log has more"
        log.warning("refused: %s", reason)
        return Answer(asked.model_copy(update={"refused": reason[:2000]})).to_bytes()

    def _do(self, request: Request, raw: bytes) -> bytes:
        head = request.head
        if head.task is Task.PROFILE:
            return Answer(AnswerHead(task=head.task, profile=self.profile)).to_bytes()
        if head.task is Task.TELL:
            return Answer(AnswerHead(task=head.task, told=self.holding.tell(head.client))).to_bytes()
        if head.plan is None:
            raise FederationError(f"a request to {head.task} does not say in which run")
        if head.task in (Task.MODEL, Task.START):
            return self._presents(head, head.plan)
        vault = self.vault(head.plan.run)
        if head.task is Task.OPEN:
            local = self._opened(head.plan, head.reading, request.payload, vault)
            return Step(local, vault, self.spool, self._address).open(head.round)
        if head.task is Task.BEGIN:
            return self._begun(head, head.plan, request.payload, vault)
        if (given := vault.answer(head.task, head.round, raw)) is not None:
            return given
        if head.round <= vault.answered(head.task) or head.round < vault.trained:
            raise FederationError(
                f"round {head.round} of run {head.plan.run} is an old one: this site has done it, or a later one, "
                f"otherwise (it has trained up to round {vault.trained}); a new run needs a new name"
            )
        step = Step(self._local(head.plan, vault), vault, self.spool, self._address)
        return step.train(request, raw) if head.task is Task.TRAIN else step.close(request, raw)

    def vault(self, run: str) -> Vault:
        """What this site keeps of a run."""
        return Vault(self.folder / STATE / run)

    @property
    def profile(self) -> Profile:
        return self.holding.profile.model_copy(update={"model": said(self._model)})

    def _presents(self, head: RequestHead, plan: Plan) -> bytes:
        """What the server cannot make itself, for it has not the code of this site's model: nothing is trained yet."""
        local, said = self._made(plan, head.reading, None, head.first), AnswerHead(task=head.task, run=plan.run)
        if head.task is Task.MODEL:
            return Answer(said.model_copy(update={"outline": local.outline})).to_bytes()
        start = Message(local.start)
        local.agrees(start)
        return Answer(said, packed(start)).to_bytes()

    def _made(
        self, plan: Plan, reading: Reading | None, start: State | None, first: Sequence[PublicSpec] = ()
    ) -> Local:
        """The client that a plan means, if this site agrees to the plan."""
        if (planned := plan.checked.noise) < self._least_noise:
            raise FederationError(
                f"run {plan.run} has noise {planned:g}, and this site takes part from {self._least_noise:g} on"
            )
        return self.client(plan, reading, start, first)

    def client(
        self, plan: Plan, reading: Reading | None, start: State | None, first: Sequence[PublicSpec] = ()
    ) -> Local:
        """The client that a plan means, with this site's data and model."""
        data = self.holding.read(plan.client.id, reading)
        how = self._own, self._fetch, self._leaves, self._noise, self._model
        return Local(plan, data, *how, start, first)

    def _opened(self, plan: Plan, reading: Reading | None, payload: bytes, vault: Vault) -> Local:
        """A run that begins, or goes on: what it is does not change once anything is trained in it."""
        start = dict(Message.from_bytes(payload).tensors) if payload else {}
        local = self._made(plan, reading, start)
        if not (_means(vault, plan) and reading_of(vault) == reading and _equal(vault.tensors(START), start)):
            if vault.plan and vault.trained:
                raise FederationError(f"this site has trained in a run {plan.run} that was planned otherwise")
            vault.open(plan.model_dump_json(), reading.model_dump_json() if reading else "", {START: start})
        self._locals = {plan.model_dump_json(): local}
        return local

    def _local(self, plan: Plan, vault: Vault) -> Local:
        key = plan.model_dump_json()
        local = self._locals.get(key) or self._made(plan, reading_of(vault), vault.tensors(START) or {})
        if not _means(vault, plan):
            raise FederationError(f"run {plan.run} is not open at this site, or was planned otherwise")
        self._locals = {key: local}
        return local

    def _begun(self, head: RequestHead, plan: Plan, message: bytes, vault: Vault) -> bytes:
        """A run that goes on from another's end: with what this site keeps of that one, and the server's last word."""
        local, before = self._local(plan, vault), head.before
        if before is None or (beginning := local.method.begins()) is None or before.checked.method != beginning.method:
            raise FederationError(f"run {plan.run} does not go on from such a run")
        if not vault.before and not vault.trained:
            kept = self.vault(before.run)
            if not kept.plan:
                raise FederationError(f"this site took no part in run {before.run}, which this one begins with")
            earlier = self._made(before, reading_of(kept), kept.tensors(START) or {})
            if not _means(kept, before):
                raise FederationError(f"run {before.run} was planned otherwise when this site took part in it")
            earlier.load(kept.tensors(OWN))
            earlier.hears(message, kept.tensors(MEMORY) or {})
            local.load(None)
            local.goes_on(local.client, earlier)
            vault.begin(before.run, {OWN: local.fleet.kept(local.client)})
        elif vault.before != before.run:
            raise FederationError(f"run {plan.run} has begun here otherwise than with run {before.run}")
        return Answer(AnswerHead(task=head.task, run=plan.run, round=head.round)).to_bytes()


def _means(vault: Vault, plan: Plan) -> bool:
    """Whether a run was opened here with this very plan."""
    return bool(vault.plan) and plan.same(plan_of(vault))


def plan_of(vault: Vault) -> Plan:
    """The plan of a run that is kept."""
    return Plan.model_validate_json(vault.plan)


def reading_of(vault: Vault) -> Reading | None:
    """How the sites of a run that is kept read their data, where they had to agree."""
    return Reading.model_validate_json(vault.reading) if vault.reading else None


def _equal(found: State | None, other: State) -> bool:
    same = found is not None and found.keys() == other.keys()
    return same and all(torch.equal(tensor, other[name]) for name, tensor in (found or {}).items())
