"""The questions of `fedexperts analyse` about a shared expert that grows and shrinks."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedexperts.cli_analyse import DataDir, Out, Runs, ask, folder_of, records_of, show_each, those
from fedexperts.cli_pool import analyse

if TYPE_CHECKING:
    from fedexperts.measure import Record

__all__ = ["analyse"]
NO_TREE = "no shared expert that is made of others is there"


@analyse.command()
def tree(runs: Runs, out: Out = Path("tree.html")) -> None:
    """How a shared expert grew and shrank over the rounds, and the figures that caused each change.

    Example: fedexperts analyse tree runs/fedemoe-digits-001
    """
    from fedexperts.methods.evolution import TREE
    from fedexperts.report import tree_sections

    def grows(record: "Record") -> bool:
        return (folder_of(record) / TREE).exists()

    growing = those(records_of(runs), grows, f"no shared expert grows or shrinks there (no {TREE})")
    show_each(growing, tree_sections.tree, out)


@analyse.command()
def spectra(runs: Runs, out: Out = Path("spectra.html")) -> None:
    """Singular values of every sub-expert of a shared expert: under-fitting, normal or over-fitting.

    Those at the end of the run.
    Example: fedexperts analyse spectra runs/fedemoe-digits-001
    """
    from fedexperts import analyses
    from fedexperts.report import tree_sections

    show_each(those(records_of(runs), analyses.shares_an_expert, NO_TREE), tree_sections.spectra, out)


@analyse.command()
def use(runs: Runs, data_dir: DataDir = None, out: Out = Path("use.html")) -> None:
    """Which clients use which sub-expert of a shared expert.

    By the final models, on all test data. It is saved as use.csv in the run's folder; its report shows it from then on.
    Example: fedexperts analyse use runs/fedemoe-digits-001
    """
    from fedexperts import analyses
    from fedexperts.report import tree_sections

    made_of_others = those(records_of(runs), analyses.shares_an_expert, NO_TREE)
    ask(made_of_others, analyses.use, analyses.USE, data_dir)
    show_each(made_of_others, tree_sections.use, out)
