"""The questions of `fedexperts analyse` about a pool of modules and those who mix it."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedexperts.cli_analyse import DataDir, Out, Runs, ask, records_of, show_each, those
from fedexperts.cli_experts import analyse

if TYPE_CHECKING:
    from fedexperts.measure import Record

__all__ = ["analyse"]


@analyse.command()
def mixture(runs: Runs, out: Out = Path("mixture.html")) -> None:
    """What the mixture of all modules is worth, if clients choose whether to use it.

    A client uses it where its validation accuracy is then higher than with its own module alone.
    Example: fedexperts analyse mixture runs/pm-moe-digits-001
    """
    from fedexperts import analyses
    from fedexperts.report import pool_sections

    def chooses(record: "Record") -> bool:
        return analyses.mixture(record) is not None

    pooled = those(records_of(runs), chooses, "no modules are pooled there, so there is no mixture to choose")
    show_each(pooled, pool_sections.mixture, out)


@analyse.command()
def pool(runs: Runs, data_dir: DataDir = None, out: Out = Path("pool.html")) -> None:
    """Whose modules are used, which are taken for noise, and what PM-MoE's theorem promises.

    By the final models, on all test data. It is saved as pool.csv in the run's folder; its report shows it from then
    on.
    Example: fedexperts analyse pool runs/pm-moe-digits-001
    """
    from fedexperts import analyses
    from fedexperts.report import pool_sections

    pooled = those(records_of(runs), analyses.pools, "no modules are pooled there")
    ask(pooled, analyses.pool_use, analyses.POOL, data_dir)
    show_each(pooled, pool_sections.pool, out)
