"""Who won, by how much, in words; and when nobody did, that."""

from collections.abc import Sequence

from fedexperts.config import TaskSettings
from fedexperts.measure import task_of
from fedexperts.report.runs import Run, ranked
from fedexperts.report.table import percent


def verdict(runs: Sequence[Run]) -> str:
    """The comparison of the selected figures as a sentence or two."""
    if differing := _differing_task(runs):
        return (
            f"These runs are not about one task: they differ in {', '.join(differing)}. "
            "Read them beside each other; no winner is named."
        )
    best, *others = ranked(runs)
    methods = [run for run in ranked(runs) if not run.is_standalone]
    if not others:
        return f"{_reached(best)}. Nothing was run beside it" + (
            "." if best.is_standalone else ", not even Standalone: whether its communication pays is open."
        )
    if best.alone is None:
        behind = 100 * (best.selected.mean - others[0].selected.mean)
        return (
            f"{_reached(best)}, {behind:.2f} points above the next, {others[0].name}. "
            "Standalone was not run: whether communication pays is open."
        )
    if not methods:
        return f"{_reached(best)}. No method was run beside it."
    return _against_standalone(methods)


def _against_standalone(methods: Sequence[Run]) -> str:
    best, *others = methods
    assert best.alone is not None
    assert best.gain is not None
    alone = f"Standalone ({percent(best.alone.figures['selected'].mean)} %)"
    if best.gain <= 0:
        below = f"{-best.gain:.2f} points below" if best.gain < 0 else "exactly as much"
        return f"Nothing beats {alone}. {_reached(best)}, {below}: its communication has not paid."
    better = sum(gain > 0 for gain in best.gains)
    worse = sum(gain < 0 for gain in best.gains)
    sentence = (
        f"{_reached(best)}, {best.gain:.2f} points above {alone}: "
        f"better for {better} of {len(best.gains)} clients, worse for {worse}."
    )
    if others:
        sentence += f" Next is {others[0].name} with {percent(others[0].selected.mean)} %."
    return sentence


def _reached(run: Run) -> str:
    return f"{run.name} reaches {percent(run.selected.mean)} % (selected, round {run.selected.round})"


def _differing_task(runs: Sequence[Run]) -> list[str]:
    tasks = [task_of(run.record) for run in runs]
    return [name for name in TaskSettings.model_fields if len({getattr(task, name) for task in tasks}) > 1]
