"""What goes between a server and its sites: a message of the method, and around it what is to be done with it.

An envelope is the length of its head, the head as JSON, and the message as safetensors. Whoever opens one trusts
nothing in it: every field has a type and limits, and a field that is not known is refused.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat, ValidationError, model_validator

from fedexperts.config import Frozen, Settings
from fedexperts.engine import Evaluation
from fedexperts.errors import FederationError
from fedexperts.federation.reading import Reading, Told
from fedexperts.models import ModelRef, Outline
from fedexperts.task import ClientSpec

HEAD_LIMIT = 4 << 20
"""Bytes of a head, at most."""
_LENGTH = 4

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
"""Of a run or a site: a file may have it as its name, and a host too."""
What = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", max_length=200)]
"""The place of tensors in a model: `experts.2`."""
Version = Annotated[str, Field(pattern=r"^[0-9]{6}-(fresh|trained|settled)$")]
"""Of what a site has ready for its peers: after which round, and before or after it adopted."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
RoundNumber = Annotated[int, Field(ge=0, le=10**6)]
ClientNumber = Annotated[int, Field(ge=0, le=10**6)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Samples = Annotated[int, Field(ge=1, le=10**12)]
OWN_MODEL = "own"
"""What a site calls a model whose code is its own: nobody else has to know more, and nobody else can run it."""


def digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


class PublicSpec(Frozen):
    """A client as the server knows it."""

    id: ClientNumber
    model: str = Field(max_length=200)
    shape: tuple[Count, ...] = Field(max_length=4)
    classes: int = Field(ge=1, le=10**6)
    samples: Samples
    clients: int = Field(ge=1, le=10**6)
    common: str | None = Field(default=None, max_length=200)

    @classmethod
    def of(cls, spec: ClientSpec) -> Self:
        names = {"model": str(spec.model), "common": spec.common and str(spec.common)}
        return cls(**{name: getattr(spec, name) for name in cls.model_fields} | names)

    def spec(self, model: ModelRef | None = None) -> ClientSpec:
        """The client itself; with the model that is meant, where its name does not say."""
        return ClientSpec(**self.model_dump() | {"model": model or self.model})


class Plan(Frozen):
    """A run as the server has it in mind for one site."""

    run: Name
    settings: dict[str, Any]
    client: PublicSpec

    @cached_property
    def checked(self) -> Settings:
        return Settings.check(self.settings)

    def same(self, other: "Plan") -> bool:
        """Whether both mean the same run; a setting that one of them does not name has the value of its own."""
        return (self.run, self.client, self.checked.defining()) == (other.run, other.client, other.checked.defining())


class Shelf(Frozen):
    """What a site has ready for its peers, and where."""

    site: Name | Literal[""] = ""  # the server's word, not the site's
    address: str = Field(default="", max_length=300, pattern=r"^[A-Za-z0-9.:\[\]-]*$")
    version: Version
    digests: dict[What, Digest] = Field(max_length=10_000)


class Profile(Frozen):
    """A site as it presents itself."""

    site: Name | Literal[""] = ""  # its name, where the carrier does not know it
    shape: tuple[Count, ...] = Field(max_length=4)
    classes: int = Field(ge=1, le=10**6)
    samples: Samples
    model: str = Field(default="", pattern=r"^[a-z0-9/-]{0,100}$")  # its operator's choice: one of ours, `own`, or any
    reading: Digest | Literal[""] = ""  # of what its classes, words and columns are; empty: that is to be agreed on


class Task(StrEnum):
    """What a server may ask of a site; there is nothing else."""

    PROFILE = "profile"  # who are you?
    TELL = "tell"  # what of your data must all know, to read theirs as you do yours?
    MODEL = "model"  # what does your own model look like, as far as this run shares it?
    START = "start"  # draw what the server begins with: it has not the code of your model
    OPEN = "open"  # take part in this run, which begins with this
    BEGIN = "begin"  # go on with the model that you had at the end of another run
    TRAIN = "train"  # receive, train, reply
    CLOSE = "close"  # adopt what peers have, and say how the model does


class RequestHead(Frozen):
    """Server → site."""

    task: Task
    round: RoundNumber = 0
    plan: Plan | None = None
    client: ClientNumber = 0  # where there is no plan yet: the number that the site has among all
    reading: Reading | None = None  # how all read their data, where that was to be agreed on
    before: Plan | None = None  # the run that this one begins with
    evaluate: bool = False
    first: tuple[PublicSpec, ...] = Field(default=(), max_length=1000)  # of each model the first client that has it
    shelves: dict[ClientNumber, Shelf] = Field(default_factory=dict)  # whom to fetch from: addresses, never the parts


class Fetched(Frozen):
    """A part that a peer gave."""

    peer: ClientNumber
    what: What
    parameters: Count
    bytes: Count


class Scores(Frozen):
    """A model on its client's validation and test data."""

    validation_correct: Count
    validation_samples: Samples
    test_correct: Count
    test_samples: Samples

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.validation_correct > self.validation_samples or self.test_correct > self.test_samples:
            raise ValueError("more samples are right than there are")
        return self

    def of(self, client: int) -> Evaluation:
        return Evaluation(client, **self.model_dump())


class AnswerHead(Frozen):
    """Site → server."""

    task: Task | None = None  # none, where the request could not be read
    run: Name | Literal[""] = ""
    round: RoundNumber = 0
    refused: str = Field(default="", max_length=2000)  # why nothing else is in it
    profile: Profile | None = None
    told: Told | None = None
    outline: Outline | None = None
    loss: FiniteFloat | None = None
    flops: Count = 0
    scores: Scores | None = None
    shelf: Shelf | None = None
    fetched: tuple[Fetched, ...] = Field(default=(), max_length=100_000)


@dataclass(frozen=True)
class Envelope:
    """A head and the bytes of a message; which head is said by the kind of envelope."""

    head: Any
    payload: bytes = b""
    kind: ClassVar[type[Frozen]]

    def to_bytes(self) -> bytes:
        head: bytes = self.head.model_dump_json(exclude_defaults=True).encode()
        return len(head).to_bytes(_LENGTH, "big") + head + self.payload

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """An error that says what is wrong, and never another one, whatever the bytes are."""
        length = int.from_bytes(raw[:_LENGTH], "big")
        if len(raw) < _LENGTH or length > min(HEAD_LIMIT, len(raw) - _LENGTH):
            raise FederationError(f"an envelope of {len(raw)} bytes is cut off, or is none")
        try:
            head = cls.kind.model_validate_json(raw[_LENGTH : _LENGTH + length])
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))[:200]
            raise FederationError(f"the head of an envelope cannot be read: {where} {first['msg']}"[:400]) from None
        return cls(head, raw[_LENGTH + length :])


class Request(Envelope):
    head: RequestHead
    kind = RequestHead


class Answer(Envelope):
    head: AnswerHead
    kind = AnswerHead
