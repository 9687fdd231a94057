"""What tests of federations share: sites and a server with real files, and a carrier without a network."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from support import LIGHT

from fedexperts.api import first_phase
from fedexperts.config import Settings
from fedexperts.federation.asking import Rules
from fedexperts.federation.carrier import SITES, introductions
from fedexperts.federation.coordinator import Coordinator
from fedexperts.federation.envelope import Shelf
from fedexperts.federation.holding import Holding
from fedexperts.federation.local import Noise, unknowable
from fedexperts.federation.site import OWN, Site
from fedexperts.federation.vault import Vault
from fedexperts.methods import method_class
from fedexperts.task import Task

SMALL = {"rounds": 3, "batch_size": 16, "lr": 0.05, "executor": "loop", "device": "cpu", "precision": "float64"}


class Neighbourhood:
    """Sites side by side. They fetch from each other's spools; what goes to the server and back is bytes."""

    def __init__(
        self,
        folder: Path,
        task: Task | Sequence[Holding],
        noise: Noise = unknowable,
        models: Sequence[str] | None = None,
    ) -> None:
        """`task`: whose clients the sites are, or each one's own data. `models`: those that the operators chose."""
        self.folder = folder
        holdings = [Holding.of(task, k) for k in range(len(task.clients))] if isinstance(task, Task) else task
        self.names = [f"site-{k}" for k in range(len(holdings))]
        self.sites = [
            Site(
                folder / name,
                holdings[k],
                self.fetch,
                address=f"{name}:1",
                noise=noise,
                model=models[k] if models else None,
            )
            for k, name in enumerate(self.names)
        ]
        self.fetched = 0
        self.meddle: Callable[[int, bytes, bytes], bytes | None] = lambda client, request, answer: answer

    def fetch(self, shelf: Shelf, run: str, what: str) -> bytes:
        raw = self.sites[self.names.index(shelf.address.partition(":")[0])].spool.read(run, shelf.version, what)
        self.fetched += len(raw)
        return raw

    def ask(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes]]:
        for client, request in requests.items():
            answer = self.meddle(client, request, self.sites[client].answer(request))
            if answer is not None:
                yield client, answer

    def coordinator(self, settings: Settings, run: str = "a-run", folder: str = "server", **rules: Any) -> Coordinator:
        place = self.folder / folder
        profiles = introductions(self, self.names, place / "state" / SITES, 1.0)
        return Coordinator(run, settings, self.names, profiles, self, place, Rules(**rules))

    def begun(self, settings: Settings) -> Settings:
        """The same settings; where they are of a run that goes on from another, after that one."""
        beginning = method_class(settings.method)(None, settings.options).begins()
        if beginning is None:
            return settings
        first = first_phase(settings, beginning)
        (self.folder / "first").mkdir(parents=True, exist_ok=True)
        (self.folder / "first" / "settings.toml").write_text(first.to_toml())
        self.coordinator(first, "first", "first").run()
        options = settings.options | {"from_": str(self.folder / "first")}
        return Settings.check(settings.model_dump() | {"options": options})

    def states(self, coordinator: Coordinator) -> dict[str, torch.Tensor]:
        """What `support.states` has of a simulation: the server's state and every client's model."""
        state = {f"server/{name}": tensor for name, tensor in coordinator.server.items()}
        for client, site in enumerate(self.sites):
            [local] = site._locals.values()
            local.load(Vault(site.folder / "state" / "a-run").tensors(OWN))
            local.message = coordinator.message_for(client)
            state |= {f"{client}/{name}": tensor for name, tensor in local.client_state(client).items()}
        return state


def settings_for(method: str, task: Task, **values: Any) -> Settings:
    own = {"method": method, "options": values.pop("options", LIGHT.get(method, {}))}
    return Settings.check(task.settings.model_dump() | own | SMALL | values)
