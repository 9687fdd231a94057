"""The questions of `fedexperts analyse` about experts and those who share them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedexperts.cli_analyse import (
    NO_EXPERTS,
    DataDir,
    Out,
    Runs,
    analyse,
    ask,
    chosen_clients,
    folder_of,
    records_of,
    show,
    show_each,
    those,
)

if TYPE_CHECKING:
    from fedexperts.measure import Record

__all__ = ["analyse"]


@analyse.command()
def experts(
    runs: Runs,
    clients: Annotated[
        str | None, typer.Option(help="clients to show one by one as well: 3,7,8, or the first so many")
    ] = None,
    data_dir: DataDir = None,
    out: Out = Path("experts.html"),
) -> None:
    """Which expert is used for which class.

    By the final models, on all test data. What `analyse gates` has saved in the run's folder is used; where it has not
    been there, its gates.csv is made. The run's report shows it from then on.
    Example: fedexperts analyse experts demo/fedmoe --clients 0,3,5
    """
    from fedexperts import analyses
    from fedexperts.report import peer_sections

    gated = those(records_of(runs), analyses.weighs, NO_EXPERTS)
    chosen = [chosen_clients(clients, record, 0) if clients else [] for record in gated]
    unasked = [record for record in gated if not (folder_of(record) / analyses.GATES).exists()]
    ask(unasked, analyses.gate_weights, analyses.GATES, data_dir)
    show_each(gated, peer_sections.experts, out, chosen)


@analyse.command()
def matrix(
    runs: Runs,
    experts: Annotated[bool, typer.Option("--experts", help="show every single expert as well")] = False,
    data_dir: DataDir = None,
    out: Out = Path("matrix.html"),
) -> None:
    """Of whose experts each client's are mixed.

    By the last aggregation matrix of the server. It is saved as matrix.csv in the run's folder; its report shows it
    from then on.
    Example: fedexperts analyse matrix runs/fedmoe-da-digits-001 --experts
    """
    from fedexperts import analyses
    from fedexperts.report import peer_sections

    mixed = those(records_of(runs), analyses.mixes, "no expert is mixed of others' there by an aggregation matrix")
    ask(mixed, analyses.aggregation_matrix, analyses.MATRIX, data_dir)
    show_each(mixed, peer_sections.matrix, out, [experts] * len(mixed))


@analyse.command()
def peers(
    runs: Runs,
    edges: Annotated[int, typer.Option(min=1, help="pairs of clients to show, the most frequent")] = 60,
    out: Out = Path("peers.html"),
) -> None:
    """Who fetches from whom, and how often.

    Example: fedexperts analyse peers runs/fedmoe-da-digits-001
    """
    from fedexperts.measure import FETCHES
    from fedexperts.report import peer_sections

    def fetches(record: "Record") -> bool:
        return (folder_of(record) / FETCHES).exists()

    talking = those(records_of(runs), fetches, f"no client has fetched anything from another there (no {FETCHES})")
    show_each(talking, peer_sections.peers, out, [edges] * len(talking))


@analyse.command()
def traffic(runs: Runs, out: Out = Path("traffic.html")) -> None:
    """Bytes through the server and between clients, over the rounds; seeds are averaged.

    Where a shared expert grows, beside how many sub-experts it has.
    Example: fedexperts analyse traffic demo/fedmoe demo/fedavg
    """
    from fedexperts.report import peer_sections

    records = records_of(runs)
    show(records, [peer_sections.traffic(records)], out)
