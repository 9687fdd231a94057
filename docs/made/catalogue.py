"""The catalogue of methods: what their classes say, what a small run of each shows, and where they were measured."""

import re
from functools import cache
from pathlib import Path

from costs import CLIENTS, ROUNDS, TASK, Cost, Dry, dry_runs
from markup import cell, prose, size, table
from pymdownx.slugs import slugify

from fedexperts import recipes
from fedexperts.catalogue import Entry
from fedexperts.catalogue import catalogue as entries
from fedexperts.methods import Channel, Owner

DOCS = Path(__file__).parent.parent
CHANNELS = {Channel.UP: "to the server", Channel.DOWN: "from the server", Channel.PEER: "from other clients"}


def methods() -> str:
    """The page's two halves: a line for each method, and a section for each."""
    known, dry = entries(), dry_runs()
    return "\n".join([_overview(known, dry), *(_section(name, entry, dry[name]) for name, entry in known.items())])


def _overview(known: dict[str, Entry], dry: dict[str, Dry]) -> str:
    rows = []
    for name, entry in known.items():
        cost = dry[name].typical
        owned = {owner: ", ".join(part for part, who in entry.owners.items() if who == owner) for owner in Owner}
        kept = [cell(owned[owner] or "–") for owner in (Owner.SHARED, Owner.PRIVATE)]
        between = f"{cell(owned[Owner.PEER])}: {size(cost.peer)}" if cost.peer else "–"
        rows.append([f"[{entry.title}](#{name})", *kept, between, size(cost.up), size(cost.down), f"{cost.flops:.2f}"])
    header = ["method", "shared", "private", "between clients", "up", "down", "training"]
    task = (
        f"{CLIENTS} clients with {TASK['samples']} of the digits between them, `{TASK['model']}` where one can choose"
    )
    return (
        f"Costs are per client in a round, seen in a run of {ROUNDS} rounds ({task}, every option as it is by itself): "
        "bytes on the wire from other clients, to the server and from it, and FLOPs of local training as a multiple of "
        f"FedAvg's.\n\n{table(header, rows, numbers=3)}"
    )


def _section(name: str, entry: Entry, dry: Dry) -> str:
    pieces = [
        f"## {entry.title} {{#{name}}}",
        f"`fedexperts run {name}` · {prose(entry.source)}",
        prose(entry.about),
        _travels(entry, dry),
        _costs(dry),
    ]
    if entry.options:
        rows = [[f"`--{option}`", *_default(said)] for option, said in entry.options.items()]
        pieces.append(table(["option", "what", "by itself"], rows))
    if used := [recipe for recipe in recipes.shipped() if name in _methods_of(recipe)]:
        pieces.append("Recipes: " + ", ".join(f"[{recipe}](recipes.md#{anchor(recipe)})" for recipe in used) + ".")
    if measured := list(_measured(name, entry.title)):
        pieces.append("Measured in: " + "; ".join(measured) + ".")
    return "\n\n".join(pieces) + "\n"


def _travels(entry: Entry, dry: Dry) -> str:
    """Its parts and their owners, and what of it was in the messages; with what only messages have."""
    rows = [
        [f"`{part}`", entry.owners.get(part, "in messages only"), *(dry.seen.travelled(part, way) for way in CHANNELS)]
        for part in dict.fromkeys([*entry.owners, *dry.seen.parts])
    ]
    return table(["part", "owner", *CHANNELS.values()], rows, numbers=len(CHANNELS))


def _costs(dry: Dry) -> str:
    def said(cost: Cost) -> str:
        ways = {"to the server": cost.up, "from it": cost.down, "from other clients": cost.peer}
        travels = ", ".join(f"{size(count)} {way}" for way, count in ways.items() if count) or "nothing travels"
        return f"{travels}; {cost.flops:.2f} times FedAvg's FLOPs"

    others = "".join(f" In {name}: {said(cost)}." for name, cost in dry.others.items())
    return f"A round of a client: {said(dry.typical)}.{others}"


def _default(said: str) -> tuple[str, str]:
    what, _, default = said.partition("  [default: ")
    return cell(what), f"`{default.removesuffix(']')}`" if default else "–"


@cache
def _methods_of(recipe: str) -> set[object]:
    """Those that it uses; read once, not once for every method."""
    found = recipes.read(recipe)
    every = [found.methods_of(case) for case in found.cases]
    return {own.get("method", label) for methods in every for label, own in methods.items()}


def _measured(name: str, title: str) -> list[str]:
    """Links to the sections whose tables have the method, or that name it."""
    links = []
    for page in [*sorted((DOCS / "results").glob("*.md")), DOCS / "benchmarks.md"]:
        text = page.read_text(encoding="utf-8")
        for heading, body in re.findall(r"^##+ (.+)\n((?:(?!^##).*\n?)*)", text, re.MULTILINE):
            cells = {
                found.strip(" *`") for line in body.splitlines() if line.startswith("|") for found in line.split("|")
            }
            if f"`{name}`" in body or {name, title} & cells:
                about = text.partition("\n")[0].removeprefix("# ").partition(":")[0]
                links.append(f"[{about}, {heading}]({page.relative_to(DOCS)}#{anchor(heading)})")
    return links


def anchor(heading: str) -> str:
    """As the site makes them."""
    return str(slugify(case="lower")(heading, "-"))
