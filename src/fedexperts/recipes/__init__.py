"""The papers' tables and figures as data: what was run, and what came out. Each is a TOML file in a paper's folder."""

from fedexperts.recipes.plan import RUNS, Cell, Choice, Reduction, plan
from fedexperts.recipes.recipe import FAILED, Case, Recipe, read, shipped
from fedexperts.recipes.reproduce import Outcome, reproduce
from fedexperts.recipes.results import results_table, write_results

__all__ = [
    "FAILED", "RUNS", "Case", "Cell", "Choice", "Outcome", "Recipe", "Reduction",
    "plan", "read", "reproduce", "results_table", "shipped", "write_results",
]  # fmt: skip
