"""The model that a site has of a run: out of its own folder, with nobody asked and nothing sent."""

from dataclasses import dataclass, replace
from pathlib import Path

from fedexperts.engine import ClientModel
from fedexperts.environment import environment
from fedexperts.errors import FederationError, suggestion
from fedexperts.export import save_model
from fedexperts.federation.site import Site, plan_of, reading_of
from fedexperts.federation.steps import MEMORY, OWN, START
from fedexperts.federation.vault import MANIFEST, Vault
from fedexperts.measure import STATE, Figure, History, Kind, curve


@dataclass(frozen=True)
class SiteModel:
    """A site's model, as it was when it was evaluated last."""

    model: ClientModel
    figures: dict[Kind, Figure]  # its test accuracy
    origin: str  # of which run, and after which of its rounds
    environment: dict[str, str]  # that it is made of its files with

    @classmethod
    def of(cls, site: Site, run: str | None = None) -> "SiteModel":
        """Of a run by its name, or of the one that was over last at this site."""
        vault = site.vault(_named(site.folder, run)) if run is not None else _last(site.folder)
        run, kept = vault.folder.name, vault.as_evaluated()
        if kept is None:
            raise FederationError(
                f"this site took part in run {run} with an older version of fedexperts, which did not keep what its "
                "model needs of the server; what is evaluated from now on is kept"
                if vault.outdated
                else f"this site's model has not been evaluated in run {run} yet; it can be had when it has"
            )
        local = site.client(plan_of(vault), reading_of(vault), kept.tensors.get(START, {}))
        local.load(kept.tensors.get(OWN))
        local.hears(kept.message, kept.tensors.get(MEMORY, {}))
        history = History()
        for number, scores in sorted(kept.scores.items()):
            history.evaluated(number, [scores.of(local.client)])
            history.ended(number, {})
        found = curve(history.rows)  # of this site alone
        model = ClientModel.of(local, local.client, found.validation_of(0))
        return cls(
            replace(model, client=replace(model.client, name=site.holding.site)),
            found.figures(beforehand=local.method.beforehand),
            f"run {run}, as after round {kept.round} of {local.settings.rounds}",
            environment(local.device),
        )

    def export(self, folder: Path) -> Path:
        """Write it so that it can be used anywhere: `fedexperts.load_exported(folder)`."""
        tested = {kind: figure.mean for kind, figure in self.figures.items()}
        made = ", ".join(f"{name} {value}" for name, value in self.environment.items())
        return save_model(self.model, folder, tested, {"federation": self.origin, "exported with": made})


def _named(folder: Path, run: str) -> str:
    known = _runs(folder)
    if run not in known:
        raise FederationError(
            f"{folder} has no run '{run}'{suggestion(run, known) or ';'} its runs are: {', '.join(known)}"
        )
    return run


def _last(folder: Path) -> Vault:
    """The run whose last round this site was there for, if there are several the one that was so last."""
    known = [Vault(folder / STATE / run) for run in _runs(folder)]
    over = [vault for vault in known if vault.evaluated and vault.evaluated == plan_of(vault).checked.rounds]
    if not over:
        names = ", ".join(vault.folder.name for vault in known)
        raise FederationError(f"no run is over at {folder}; --run NAME takes one as it is now: {names}")
    return max(over, key=lambda vault: (vault.folder / MANIFEST).stat().st_mtime_ns)


def _runs(folder: Path) -> list[str]:
    """The names of the runs that a site has taken part in."""
    if not (found := sorted(path.parent.name for path in (folder / STATE).glob(f"*/{MANIFEST}"))):
        raise FederationError(f"{folder} has taken part in no run yet")
    return found
