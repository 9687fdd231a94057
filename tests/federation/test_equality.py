"""A federation ends where a simulation with the same seed ends: the same parameters, figures, bytes and models."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
from neighbourhood import Neighbourhood, settings_for
from support import assert_close, finished, make_simulation, make_task, states

from fedexperts.engine import ClientModel
from fedexperts.errors import FedExpertsError, UnreachableError
from fedexperts.federation.envelope import Shelf
from fedexperts.federation.exported import SiteModel
from fedexperts.measure import Fetches, History, curve, privacy_of
from fedexperts.methods import Message, registry
from fedexperts.task import Task

TASK = make_task(sizes=(32, 29, 12))


IN_SHORT = ("fedavg", "fedmoe", "fedmoe-da", "fedtgp", "pm-moe")
OTHERS = [name for name in registry() if name not in IN_SHORT]
FIRST = {"rounds": 2, "batch_size": 16, "lr": 0.05, "participation": 0.7}
OPTIONS = {"pm-moe": {"base": "fedper", "pretraining": FIRST, "gate_lr": 0.05}}
"""Of methods that would not run without, or too long."""


@pytest.mark.parametrize("name", [*IN_SHORT, *(pytest.param(name, marks=pytest.mark.federation) for name in OTHERS)])
def test_a_federation_equals_the_simulation(name: str, tmp_path: Path) -> None:
    values = {"participation": 0.7} | ({"options": OPTIONS[name]} if name in OPTIONS else {})
    there = Neighbourhood(tmp_path, TASK)
    federation = there.coordinator(there.begun(settings_for(name, TASK, **values)))
    federation.run()

    history = History(tmp_path / "history.csv")
    observers = (history, Fetches(tmp_path / "fetches.csv"))
    simulation = make_simulation(name, TASK, observers=observers, **values)
    if (beginning := simulation.method.begins()) is not None:
        simulation.begin(finished(beginning.method, TASK, **beginning.values))
    simulation.run()

    assert_close(there.states(federation), states(simulation))
    for table in ("history.csv", "fetches.csv", "absences.csv"):
        found, expected = (folder / table for folder in (tmp_path / "server", tmp_path))
        assert found.exists() == expected.exists()
        if expected.exists():
            assert found.read_text() == expected.read_text()
    assert there.fetched == sum(row["peer_bytes"] for row in history.rows)

    for client, site in enumerate(there.sites):  # what each may take away
        own = SiteModel.of(site).model
        client_model = ClientModel.of(simulation, client, curve(history.rows).validation_of(client))
        assert_close(own.tensors, client_model.tensors)
        assert_close(own.received, client_model.received)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["fedprox", "scaffold", "fedcac", "fedmoe-da"])
def test_a_site_with_a_gpu_computes_there(name: str, tmp_path: Path) -> None:
    """What comes by the network lies in the main memory first."""
    there = Neighbourhood(tmp_path, TASK)
    federation = there.coordinator(settings_for(name, TASK, device="cuda"))
    federation.run()
    history = History()
    simulation = make_simulation(name, TASK, observers=(history,), participation=1.0)
    simulation.run()
    found = {place: tensor.cpu() for place, tensor in there.states(federation).items()}
    assert_close(found, states(simulation))
    assert there.fetched == sum(row["peer_bytes"] for row in history.rows)


@pytest.mark.parametrize("name", ["fedavg", "fedmoe"])
def test_with_noise_of_the_same_streams_too(name: str, tmp_path: Path) -> None:
    values = {"participation": 0.7, "clip": 0.01, "noise": 0.5}
    there = Neighbourhood(tmp_path, TASK, noise=lambda client, now: now.stream("noise", client))
    federation = there.coordinator(settings_for(name, TASK, **values))
    federation.run()
    simulation = make_simulation(name, TASK, **values)
    simulation.run()
    assert_close(there.states(federation), states(simulation))
    assert privacy_of(federation) == privacy_of(simulation) is not None


def test_a_site_draws_its_noise_where_no_server_can_follow(tmp_path: Path) -> None:
    """Not from the run's seed, and another time otherwise; but a step that is asked for again has its one answer."""
    settings = settings_for("fedavg", TASK, rounds=1, clip=0.01, noise=0.5)
    ends, repeated = [], []
    for number in range(2):
        there = Neighbourhood(tmp_path / str(number), TASK)
        there.meddle = lambda client, request, answer, sites=there.sites: (
            repeated.append(sites[client].answer(request) == answer) or answer
        )
        federation = there.coordinator(settings)
        federation.run()
        ends.append(federation.server["head.weight"])
    simulation = make_simulation("fedavg", TASK, rounds=1, participation=1.0, clip=0.01, noise=0.5)
    simulation.run()
    noisy = [*ends, simulation.server["head.weight"]]
    assert all(not torch.allclose(one, other, atol=1e-4) for one, other in combinations(noisy, 2))
    assert len(repeated) > 2 * len(TASK.clients)
    assert all(repeated)


@pytest.mark.parametrize("method", ["fedproto", "fedmoe-da"])
def test_what_noise_cannot_cover_leaves_no_site(method: str, tmp_path: Path) -> None:
    there = Neighbourhood(tmp_path, TASK)
    with pytest.raises(FedExpertsError, match="cannot run with --clip"):
        there.coordinator(settings_for(method, TASK, clip=1.0, noise=1.0)).run()


@pytest.mark.parametrize("trouble", ["away", "other bytes", "no numbers", "other shapes"])
def test_where_a_peer_gives_nothing_of_use_the_own_expert_stands_in(trouble: str, tmp_path: Path) -> None:
    """The result is that of a client whom nobody gave anything."""

    def expert(raw: bytes, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
        message = Message.from_bytes(raw)
        return Message({name: change(tensor) for name, tensor in message.tensors.items()}).to_bytes()

    class Bad(Neighbourhood):
        asked = 0

        def fetch(self, shelf: Shelf, run: str, what: str) -> bytes:
            self.asked += 1
            raw = super().fetch(shelf, run, what)
            if trouble == "away":
                raise UnreachableError("nobody answers")
            return raw[:-1] + b"!"

    class Lying(Neighbourhood):
        """What is in the spool, and announced, is bad itself."""

        asked = 1

        def __init__(self, folder: Path, task: Task) -> None:
            super().__init__(folder, task)
            for site in self.sites:
                fill = site.spool.fill
                site.spool.fill = lambda run, version, things, fill=fill: fill(run, version, self.spoilt(things))

        def spoilt(self, things: dict[str, bytes]) -> dict[str, bytes]:
            change = (lambda t: t * torch.nan) if trouble == "no numbers" else (lambda t: t.flatten())
            return {what: expert(raw, change) for what, raw in things.items()}

    settings = settings_for("fedmoe-da", TASK, rounds=2, options={"experts": (2,)})
    there = (Bad if trouble in ("away", "other bytes") else Lying)(tmp_path / "there", TASK)
    federation = there.coordinator(settings)
    federation.run()
    assert there.asked
    alone = make_simulation("fedmoe-da", TASK, rounds=2, participation=1.0, peer_drop=1.0, options={"experts": (2,)})
    alone.run()
    assert_close(there.states(federation), states(alone))
    assert not (tmp_path / "there" / "server" / "fetches.csv").exists()
