"""Settings: what a run is, complete enough to repeat it. Frozen, checked on the way in, saved with every run."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from fedexperts.errors import SavedStateError, SettingsError, suggestion


def _in_turn(value: Any) -> Any:
    """One value, several with commas, or a list of them."""
    if isinstance(value, str):
        return tuple(value.split(","))
    return tuple(value) if isinstance(value, list | tuple) else (value,)


NamesInTurn = Annotated[tuple[str, ...], BeforeValidator(_in_turn), Field(min_length=1)]
NumbersInTurn = Annotated[tuple[PositiveInt, ...], BeforeValidator(_in_turn), Field(min_length=1)]
"""Settings that go to the clients in turn: client k gets number k modulo their count."""
ClientNumbers = Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_in_turn)]
Seeds = Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_in_turn), Field(min_length=1)]
SCHEDULE = "schedule"
Rounds = Annotated[PositiveInt, SCHEDULE]
"""A method's option that means a part of the run: in a shorter one it is as much shorter (`recipes.Reduction`)."""

DriftName = Literal["none", "sudden", "gradual"]
TOGETHER = {
    "heterogeneous": tuple(f"cnn{i}" for i in range(1, 6)),
    "backbones": ("resnet18", "resnet34", "mobilenet-512", "googlenet-512"),
}
"""Names for several models: FedMoE's five, and FedEMoE's four backbones, which end alike."""
PartitionName = Literal["homogeneous", "pathological", "dirichlet", "dirichlet-shared", "own"]


def absolute(folder: Path | None) -> Path | None:
    """For settings that name a folder: a run is resumed from anywhere."""
    return None if folder is None else folder.expanduser().absolute()


class Frozen(BaseModel):
    """Base of all settings: unknown names are refused, nothing changes afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> Self:
        """Build from plain values; what is wrong becomes one clear `SettingsError`."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError("\n".join(_explain(line, cls) for line in error.errors())) from None


def _explain(line: Any, model: type[BaseModel]) -> str:
    path = ".".join(str(step) for step in line["loc"])
    if line["type"] == "extra_forbidden":
        name = str(line["loc"][-1])
        return f"unknown setting '{name}'{suggestion(name, model.model_fields)}"
    if line["type"] == "missing":
        return f"setting '{path}' is missing"
    if not path:
        return str(line["msg"]).removeprefix("Value error, ")
    return f"setting '{path}' cannot be {line['input']!r}: {str(line['msg']).removeprefix('Value error, ')}"


class TaskSettings(Frozen):
    """Which data, who has which part of it, and which model each client runs."""

    data: str = Field(
        "digits",
        description="data set, see `fedexperts data`; a .csv or .jsonl file with columns text and label; or a folder "
        "with a folder for each client, with a slash (clients/)",
    )
    data_dir: Path | None = Field(None, description="folder with the data files (else $FEDEXPERTS_DATA)")
    download: bool = Field(False, description="fetch the set from Hugging Face if the folder lacks it (extra 'hub')")
    samples: int | None = Field(
        None, ge=1, description="use only so many samples of the set, its classes as frequent as in all (default: all)"
    )
    vocabulary: int = Field(
        20_000, ge=1, description="texts: words that are known, the most frequent of all clients' training data"
    )
    text_length: int = Field(100, ge=1, description="texts: how many words are read, from the first on")
    image_size: int | None = Field(
        None, ge=1, description="folders of pictures: make all of them so many pixels high and wide"
    )
    clients: int = Field(10, ge=1, description="number of clients N")
    partition: PartitionName = Field(
        "pathological", description="how the set is split over the clients; own: they bring their own data"
    )
    classes_per_client: int = Field(2, ge=1, description="pathological: classes that a client has")
    balanced: bool = Field(True, description="pathological: equal counts, or Dirichlet(alpha) counts")
    alpha: float = Field(0.1, gt=0, description="Dirichlet parameter: smaller is more uneven")
    shared_ratio: float = Field(
        0.2, ge=0, le=1, description="dirichlet-shared: part of each class that is spread evenly"
    )
    samples_per_client: int | None = Field(None, ge=1, description="fixed number of samples of each client")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="part of a client's data kept for testing")
    validation_fraction: float = Field(
        0.1, gt=0, lt=1, description="part of a client's training data kept for choosing the round"
    )
    drift: DriftName = Field("none", description="whether each client's class mix moves over the rounds, and how")
    phases: int = Field(4, ge=2, description="drift: class mixes that a client has one after another")
    model: NamesInTurn = Field(
        ("cnn5",),
        description="model (texts: fasttext); several, with commas, go to the clients in turn; "
        "'heterogeneous' = cnn1…cnn5, 'backbones' = resnet18, resnet34, mobilenet-512, googlenet-512",
    )
    common_model: str | None = Field(
        None, description="model of methods that need one for all (default: the last of --model)"
    )
    seed: int = Field(0, ge=0, description="seed of everything random")

    _absolute = field_validator("data_dir")(absolute)

    @model_validator(mode="before")
    @classmethod
    def _file(cls, values: Any) -> Any:
        """A file or a folder of one's own may be named with its path: what it lies in is the data folder.

        A folder's name ends with a slash.
        """
        data = values.get("data")
        if not isinstance(data, str):
            return values
        path = Path(values.get("data_dir") or "", data)
        is_folder = data.endswith("/") or ("/" in data and path.expanduser().is_dir())
        of_python = values.get("partition") == "own"  # then it is just a name
        if not is_folder and (of_python or not path.suffix):
            return values
        return {**values, "data": path.name + "/" * is_folder, "data_dir": path.parent}

    @field_validator("model")
    @classmethod
    def _together(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return TOGETHER.get(names[0], names) if len(names) == 1 else names


class TrainSettings(Frozen):
    """How clients train and how often they talk."""

    rounds: int = Field(100, ge=1, description="communication rounds T")
    participation: float = Field(1.0, gt=0, le=1, description="part C of the clients sampled in a round")
    epochs: int = Field(1, ge=1, description="local epochs E")
    peer_drop: float = Field(0.0, ge=0, le=1, description="part of the fetches between clients that fail")
    batch_size: int = Field(64, ge=2, description="samples in a batch; a smaller client uses all it has")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="local optimiser, fresh in every stage")
    lr: float = Field(0.1, gt=0, description="learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")


class PrivacySettings(Frozen):
    """Client-level differential privacy of what leaves; off unless there is a clip."""

    clip: float | None = Field(
        None, gt=0, description="privacy: largest norm C of the change that a client sends; off without it"
    )
    noise: float = Field(0.0, ge=0, description="privacy: Gaussian noise σ on that change, in multiples of --clip")
    delta: float = Field(1e-5, gt=0, lt=1, description="privacy: the δ for which ε is reported")

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.noise and self.clip is None:
            raise ValueError(f"noise {self.noise:g} says nothing about a change of any size: give a clip too")
        return self


class EngineSettings(Frozen):
    """Where and how it runs. Of these only precision changes the digits, and `evaluate_every` what is looked at."""

    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 …")
    executor: Literal["auto", "loop", "workers", "captured", "stacked"] = Field(
        "auto",
        description="one by one, one worker per core, one by one with captured steps (CUDA), or all clients as one "
        "program; auto: workers on a CPU, on CUDA stacked for small models and captured for large ones",
    )
    graphs: bool = Field(True, description="captured or stacked on CUDA: capture the clients' training steps as graphs")
    compile: bool = Field(False, description="captured steps: compile them first (a slow start, faster rounds)")
    group_size: int | None = Field(
        None, ge=1, description="about how many clients are on the device at once (default: those sampled that fit)"
    )
    precision: Literal["float32", "tf32", "bfloat16", "float64"] = Field(
        "float32", description="arithmetic of the products; float64 (all of it) is for checking, not for speed"
    )
    store: Literal["memory", "disk", "device"] = Field(
        "memory", description="where clients live while they are not sampled"
    )
    evaluate_every: int = Field(1, ge=1, description="rounds between two evaluations of all clients")
    checkpoint_every: int = Field(10, ge=1, description="rounds between two checkpoints")
    profile: bool = Field(
        False, description="say where the time went, and write trace.json for https://ui.perfetto.dev"
    )


class Settings(TaskSettings, TrainSettings, PrivacySettings, EngineSettings):
    """A whole run: `method`, its own options, and everything above. Saved as `settings.toml`."""

    method: str = Field("fedavg", description="see `fedexperts methods`")
    options: dict[str, Any] = Field(default_factory=dict, description="the method's own settings")

    @model_validator(mode="after")
    def _on_cpu(self) -> Self:
        if self.executor == "workers" and self.device not in ("auto", "cpu"):
            raise ValueError(f"executor 'workers' runs on the CPU, not on '{self.device}'; use 'stacked' or 'loop'")
        return self

    def part(self, kind: type[Frozen]) -> Any:
        """The settings of one kind (`TaskSettings`, `TrainSettings` …) out of all."""
        return kind(**{name: getattr(self, name) for name in kind.model_fields})

    @property
    def begins_with(self) -> dict[str, Path]:
        """Those of the method's own settings that name a folder: of a run that this one begins with."""
        folders = {name: Path(value) for name, value in self.options.items() if isinstance(value, str)}
        return {name: folder for name, folder in folders.items() if folder.is_absolute()}

    def defining(self) -> dict[str, Any]:
        """What makes the run this run; the rest says only where and how it is computed.

        A run that this one begins with counts by its folder's name: that may lie elsewhere.
        """
        free = {
            "data_dir",
            "download",
            "device",
            "executor",
            "graphs",
            "compile",
            "group_size",
            "store",
            "checkpoint_every",
            "profile",
        }
        values = self.model_dump(mode="json", exclude=free)
        values["options"] |= {name: folder.name for name, folder in self.begins_with.items()}
        return values

    def to_toml(self) -> str:
        """The text that `from_toml` reads back to the same settings."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        return cls.check(read_toml(path))

    @classmethod
    def saved(cls, path: Path) -> Self:
        """The settings that a run saved: whole, or an error."""
        values = read_toml(path)
        if not {"method", "options"} <= values.keys():  # they come last
            raise SavedStateError(f"{path} is cut off: it does not end with the method's options; restore it")
        return cls.check(values)


def read_toml(path: Path) -> dict[str, Any]:
    """A settings file as plain values."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"there is no settings file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise SettingsError(f"{path} is not a TOML file: {error}") from None
