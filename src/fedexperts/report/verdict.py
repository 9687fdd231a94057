"""Who won, by how much, in words; and when nobody did, that."""

from collections.abc import Sequence
from statistics import mean

from fedexperts import analyses
from fedexperts.analyses import Difference, Selected
from fedexperts.config import TaskSettings
from fedexperts.measure import Record, task_of
from fedexperts.report.runs import Line, Run, lines
from fedexperts.report.table import over_seeds, percent


def verdict(runs: Sequence[Run]) -> str:
    """The comparison of the selected figures as a sentence or two; seeds are averaged."""
    found = lines(runs)
    if differing := _differing_task(found):
        return (
            f"These runs are not about one task: they differ in {', '.join(differing)}. "
            "Read them beside each other; no winner is named."
        )
    best, *others = _ranked(found)
    methods = [line for line in (best, *others) if not line.run.is_standalone]
    if not others:
        return f"{_reached(best)}. Nothing was run beside it" + (
            "." if best.run.is_standalone else ", not even Standalone: whether its communication pays is open."
        )
    if best.run.alone is None:
        behind = 100 * (mean(best.selected) - mean(others[0].selected))
        return (
            f"{_reached(best)}, {behind:.2f} points above the next, {others[0].run.name}. "
            "Standalone was not run: whether communication pays is open."
        )
    if not methods:
        return f"{_reached(best)}. No method was run beside it."
    return _against_standalone(methods)


def mixture_verdict(record: Record) -> str:
    """What a PM-MoE run gains over its base's last round, and over its selected one, if every client chooses.

    Nothing of other runs.
    """
    found = analyses.mixture(record)
    if found is None:
        return ""
    base = analyses.base_of(record).title
    return (
        f"{base} alone: {percent(found.base.mean)} % after its last round. The mixture for all clients: "
        f"{percent(found.everywhere.mean)} % (round {found.everywhere.round}). For those only whose validation "
        f"accuracy it raises, {found.used.sum()} of {len(found.used)}: {percent(found.chosen.mean)} %. Gain over that "
        f"last round if all choose so: {gain_in_words(found.gains)}; with the mixture for all: "
        f"{gain_in_words(found.gains_everywhere)}. {_over_selected(found.selected, base)}"
    )


def _over_selected(selected: Selected | None, base: str) -> str:
    if selected is None:
        return f"Over {base}'s selected round it is not known: its own run is not at hand."
    return (
        f"{base} in its selected round ({selected.base.round}): {percent(selected.base.mean)} %. Gain over that, which "
        f"is what may be claimed: {gain_in_words(selected.gains, selected.misled)}."
    )


def gain_in_words(gains: Difference, misled: int | None = None) -> str:
    """Its mean and spread; how many lose, and how many of them against their validation data, if that is asked."""
    points, asked = gains.points, misled is not None and gains.worse > 0
    against = f", {misled} of them although their validation data were for it" * asked
    return (
        f"{points.mean():+.2f} points (std {points.std():.2f} over the clients, worst {points.min():+.2f}, "
        f"{gains.worse} lose{against})"
    )


def _against_standalone(methods: Sequence[Line]) -> str:
    best, *others = methods
    assert best.gain is not None
    reference = [run.alone.figures["selected"].mean for run in best.runs if run.alone is not None]
    alone = f"Standalone ({over_seeds(reference)} %)"
    if best.gain <= 0:
        below = f"{-best.gain:.2f} points below" if best.gain < 0 else "exactly as much"
        return f"Nothing beats {alone}. {_reached(best)}, {below}: its communication has not paid."
    better = sum(gain > 0 for gain in best.gains)
    worse = sum(gain < 0 for gain in best.gains)
    everybody = "clients of all seeds" if len(best.runs) > 1 else "clients"
    sentence = (
        f"{_reached(best)}, {best.gain:.2f} points above {alone}: "
        f"better for {better} of {len(best.gains)} {everybody}, worse for {worse}."
    )
    if others:
        sentence += f" Next is {_subject(others[0])} with {over_seeds(others[0].selected)} %."
    return sentence


def _ranked(found: Sequence[Line]) -> list[Line]:
    """Best selected mean first."""
    return sorted(found, key=lambda line: -mean(line.selected))


def _reached(line: Line) -> str:
    where = f", round {line.run.selected.round}" if len(line.runs) == 1 else ""
    return f"{_subject(line)} reaches {over_seeds(line.selected)} % (selected{where})"


def _subject(line: Line) -> str:
    """Its name, which ends in how many seeds if there are several."""
    return line.run.name + "," * (len(line.runs) > 1)


def _differing_task(found: Sequence[Line]) -> list[str]:
    """Settings of the task in which the lines differ; their seeds, if not every line has the same ones."""
    tasks = [task_of(line.run.record) for line in found]
    names = [name for name in TaskSettings.model_fields if name != "seed"]
    seeds = {frozenset(record.settings.seed for record in line.records) for line in found}
    differing = [name for name in names if len({getattr(task, name) for task in tasks}) > 1]
    return differing + ["seed"] * (len(seeds) > 1)
