"""The folders of a federation: what `fedexperts federation new` writes, and what its members read."""

import re
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import Field

from fedexperts.config import Frozen, read_toml
from fedexperts.errors import FederationError
from fedexperts.federation.asking import Rules
from fedexperts.federation.certificates import issue, make_authority
from fedexperts.federation.envelope import Name
from fedexperts.federation.hub import SERVER
from fedexperts.federation.peers import Exchange

AUTHORITY, RUNS, FLOWER, README = "authority", "runs", "flower", "README.md"
_APP = "federation_app"
SERVER_SETTINGS, SITE_SETTINGS = "server.toml", "site.toml"
PORT = 9440
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]")
Names = Annotated[tuple[Name, ...], Field(min_length=1)]


class ServerSettings(Frozen):
    """The server's `server.toml`."""

    listen: str = Field(description="where sites find the server: address and port")
    sites: Names = Field(description="who may take part; their order gives the clients their numbers")
    rules: Rules = Rules()


class SiteSettings(Frozen):
    """A site's `site.toml`; its operator's to change."""

    name: Name
    server: str = Field(description="the server's address and port")
    listen: str = Field(description="where this site's peers find it: address and port on this machine")
    address: str = Field(description="the same as peers must call it")
    peers: tuple[Name, ...] = Field(description="who may fetch from this site, and from whom it fetches")
    leaves: tuple[str, ...] | None = Field(
        default=None, description="parts that may leave this site; without it those that the method says"
    )
    least_noise: float = Field(default=0.0, ge=0, description="runs with a smaller --noise this site refuses")
    model: str | None = Field(
        default=None, description="this site's model: one of ours, or package.module:function; without it the run's"
    )
    tells: bool = Field(
        default=True,
        description="own texts and tables: whether this site tells how often it has which words, or its columns' sums; "
        "else it reads as the others agree to",
    )
    exchange: Exchange = Exchange()
    data: dict[str, Any] = Field(default_factory=dict, description="options of `fedexperts data`, and `part`")
    compute: dict[str, str] = Field(default_factory=dict, description="device and executor, if not by themselves")

    @classmethod
    def of(cls, folder: Path) -> Self:
        return cls.check(read_toml(folder / SITE_SETTINGS))


def read_server(folder: Path) -> ServerSettings:
    path = folder / SERVER / SERVER_SETTINGS
    if not path.exists():
        raise FederationError(f"{folder} is not the folder of a federation: it has no {SERVER}/{SERVER_SETTINGS}")
    values = read_toml(path)
    return ServerSettings.check(values | {"rules": Rules.check(values.get("rules", {}))})


def new(folder: Path, sites: tuple[str, ...], host: str, port: int, rules: dict[str, Any] | None = None) -> None:
    """Everything that a consortium needs, on one machine; each member's folder then goes to that member."""
    if folder.exists() and any(folder.iterdir()):
        raise FederationError(f"{folder} exists and is not empty; choose another folder")
    check_names(sites)
    check_host(host, port if port < 1 else port + len(sites))
    listening = ServerSettings.check({"listen": f"0.0.0.0:{port}", "sites": sites, "rules": rules or {}})
    make_authority(folder / AUTHORITY, folder.name)
    issue(folder / AUTHORITY, folder / SERVER, SERVER, also=sorted({host, "localhost", "127.0.0.1"}))
    _write(folder / SERVER / SERVER_SETTINGS, listening)
    for number, name in enumerate(sites, 1):
        add(folder, name, f"{host}:{port + number}", f"{host}:{port}", sites)
    (folder / RUNS).mkdir()
    flower = folder / FLOWER
    flower.mkdir()
    (flower / "pyproject.toml").write_text(tomli_w.dumps(_flower(folder)), encoding="utf-8")
    (flower / f"{_APP}.py").write_text(
        'from fedexperts.federation.flower import client_app, server_app\n\n__all__ = ["client_app", "server_app"]\n',
        encoding="utf-8",
    )
    (folder / README).write_text(readme(folder, sites), encoding="utf-8")


def check_names(sites: tuple[str, ...]) -> None:
    if odd := [name for name in sites if not NAME.fullmatch(name)]:
        raise FederationError(f"a site's name is of small letters, digits and '-', not {odd[0]!r}")
    if len(set(sites)) < len(sites) or {SERVER, AUTHORITY, RUNS, FLOWER} & set(sites):
        raise FederationError(f"sites need names of their own, other than {SERVER}, {AUTHORITY}, {RUNS} and {FLOWER}")


def check_host(host: str, port: int = PORT) -> None:
    if not HOST.fullmatch(host):
        raise FederationError(f"{host!r} is not the name or the address of a machine")
    if not 0 < port < 65536:
        raise FederationError(f"there is no port {port}; they go from 1 to 65535, and every site has one of its own")


def add(folder: Path, name: str, address: str, server: str, sites: tuple[str, ...]) -> None:
    """A site's folder, with its certificate and settings; both addresses with their ports."""
    settings = SiteSettings.check(
        {
            "name": name,
            "server": server,
            "listen": f"0.0.0.0:{address.rpartition(':')[2]}",
            "address": address,
            "peers": [site for site in sites if site != name],
        }
    )
    issue(folder / AUTHORITY, folder / name, name)
    _write(folder / name / SITE_SETTINGS, settings)


def _flower(folder: Path) -> dict[str, Any]:
    """What `flwr run` wants to know."""
    config = {"folder": str(folder.absolute()), "method": "fedavg", "rounds": 3, "name": "flower", "options": ""}
    components = {"serverapp": f"{_APP}:server_app", "clientapp": f"{_APP}:client_app"}
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": folder.name,
            "version": "1.0.0",
            "description": "A federation of fedexperts",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {"flwr": {"app": {"publisher": "fedexperts", "components": components, "config": config}}},
    }


def _write(path: Path, settings: Frozen) -> None:
    path.write_text(tomli_w.dumps(settings.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")


def readme(folder: Path, sites: tuple[str, ...]) -> str:
    starts = "\n".join(f"    fedexperts site {folder / name} --data …      # at {name}" for name in sites)
    rows = "\n".join(f"| `{n}/` | {n} | `site.toml`, its certificate and key; later its private state |" for n in sites)
    return f"""# Federation {folder.name}

| folder | whose | what |
|---|---|---|
| `authority/` | whoever admits members | signs certificates; keep `authority.key` off line |
| `server/` | the server | `server.toml`, its certificate and key |
{rows}
| `runs/` | the server | settings, history and state of every run |
| `flower/` | whoever uses Flower instead of `fedexperts server` and `site` | the app directory for `flwr run` |

Give each site its own folder and no other: a key is only its owner's. In each `site.toml` put the addresses right.

    fedexperts server {folder}
{starts}
    fedexperts federation run {folder} --method fedmoe --rounds 20
    fedexperts federation status {folder}

The server must be reachable by the sites, and a site by its peers only if the method exchanges experts. A site decides
what leaves it: `fedexperts site FOLDER --show-outgoing --method fedmoe` lists it before anything is sent. When a run is
over `fedexperts federation export FOLDER OUT --data …` writes the site's own model, on its machine.
"""
