"""A federation's run that is over, as its server has it: another one may begin with it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedexperts.config import Settings, TrainSettings
from fedexperts.engine.server import Server
from fedexperts.errors import FederationError
from fedexperts.federation.carrier import SITES, Carrier, Profiles
from fedexperts.federation.envelope import Plan, Profile
from fedexperts.federation.meeting import Meeting
from fedexperts.measure import SETTINGS, STATE
from fedexperts.methods import method_class


class Ended(Server):
    """Its server's last state: what it would say to a site now."""

    def __init__(self, folder: Path, sites: Sequence[str], profiles: Mapping[int, Profile], carrier: Carrier) -> None:
        """`profiles`: the sites' as they are now; they must be what they were."""
        settings = Settings.saved(folder / SETTINGS)
        method = method_class(settings.method)(settings.part(TrainSettings), settings.options)
        state = folder / STATE
        if not (state / SITES).exists():
            raise FederationError(f"run {folder.name}, which this one begins with, has not taken place")
        then = Profiles.model_validate_json((state / SITES).read_text(encoding="utf-8")).of
        if then != profiles:
            raise FederationError(f"run {folder.name}, which this one begins with, had other sites, or they other data")
        self._meeting = Meeting(folder.name, method, settings, sites, carrier, state)
        self._meeting.reading(then, 0)
        specs, _ = self._meeting.clients(then, 0)
        super().__init__(method, dict(enumerate(specs)), settings, {})
        manifest = self.checkpointed(state)
        if [who[0] for who in manifest["data"]] != list(sites) or manifest["round"] < settings.rounds:
            raise FederationError(f"run {folder.name}, which this one begins with, is not over, or had other sites")
        self.continues(state, manifest)

    def plan(self, client: int) -> Plan:
        """The run as a site knew it."""
        return self._meeting.plan(self.specs[client])
