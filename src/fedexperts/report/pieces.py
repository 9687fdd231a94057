"""The pieces of a page as HTML. Everything that comes from a run is escaped here."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

import plotly.graph_objects as go

from fedexperts.report.drawing import for_paper, least_width
from fedexperts.report.section import Section
from fedexperts.report.template import as_json
from fedexperts.report.values import figure_csv


class Pieces:
    """A page as it is put together: its HTML, and what its scripts need, by the names that stand in the HTML."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._html: list[str] = []
        self._chapters: dict[str, str] = {}
        self._figures: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self.clients: list[object] = []

    @property
    def body(self) -> str:
        links = [f'<a href="#{name}">{escape(heading)}</a>' for name, heading in self._chapters.items()]
        contents = "".join(links) if len(links) > 1 else ""
        top = (
            f'<header id="top"><nav id="contents" aria-label="Contents">{contents}</nav>'
            '<button id="theme" type="button" aria-label="Switch between light and dark">◐</button></header>'
        )
        return "\n".join([top, f'<h1 id="title">{escape(self.title)}</h1>', *self._html])

    def data(self, version: str = "") -> str:
        """What the page's scripts read, as JSON."""
        figures = ",".join(f"{as_json(name)}:{figure}" for name, figure in self._figures.items())
        rest = {"version": version, "files": self._files, "clients": self.clients}
        return f'{{"figures":{{{figures}}},{as_json(rest)[1:]}'

    def add(self, *html: str) -> None:
        self._html += html

    def chapter(self, heading: str, html: Iterable[str], about: str = "") -> None:
        """A part of the page with a place in its contents; nothing if there is nothing in it."""
        name = unused(slug(heading), self._chapters)
        if inside := "\n".join(html):
            self._chapters[name] = heading
            said = f'<p class="quiet">{prose(about)}</p>' if about else ""
            self.add(f'<section class="chapter" id="{name}"><h2>{escape(heading)}</h2>{said}{inside}</section>')

    def figures(self, sections: Iterable[Section]) -> Iterator[str]:
        """The sections' figures with what is said about them, and buttons that save them."""
        for heading, how_to_read, figure, finding in sections:
            name = unused(slug(heading), self._figures)
            least = self.figure(name, figure)
            said = f'<p class="finding">{prose(finding)}</p>' if finding else ""
            yield (
                f'<figure id="figure-{name}"><h3>{escape(heading)}</h3>{said}<p class="quiet">{prose(how_to_read)}</p>'
                f"{holder(name, heading, figure.layout.height, least)}</figure>"
            )

    def figure(self, name: str, figure: go.Figure, **on_paper: object) -> int:
        """Keep a figure under a name; how wide it must be at least is the answer."""
        more = as_json({"paper": for_paper(figure) | on_paper, "csv": figure_csv(figure)})
        self._figures[name] = f"{figure.to_json()[:-1]},{more[1:]}"
        return least_width(figure)

    def file(self, name: str, text: str) -> str:
        """A button that saves a file."""
        self._files[name] = text
        return f'<button type="button" data-file="{escape(name)}">{escape(name.rpartition(".")[2].upper())}</button>'


def holder(name: str, heading: str, height: int, least: int = 0) -> str:
    """Where a figure is drawn; if it needs more room than a phone has, it can be moved sideways."""
    style = f"height:{height}px" + (f";min-width:{least}px" if least else "")
    saves = [
        f'<button type="button" data-save="{kind}" data-of="{name}" aria-label="{escape(heading)} as {kind.upper()}">'
        f"{kind.upper()}</button>"
        for kind in ("svg", "pdf", "csv")
    ]
    return (
        f'<div class="wide"><div class="drawing" id="drawing-{name}" data-figure="{name}" data-keep role="img" '
        f'aria-label="{escape(heading)}" style="{style}"></div></div>'
        f'<div class="save"><span>Save as</span>{"".join(saves)}</div>'
    )


def table(
    name: str,
    cells: Mapping[str, Sequence[str]],
    chosen: str = "",
    best: Sequence[tuple[str, int]] = (),
    colours: Sequence[tuple[str, str]] = (),
) -> str:
    """A table that sorts, from headers (a line break where the column is narrow) to cells; `best` ones stand out."""
    marks = {header: ["chosen"] * (header == chosen) for header in cells}
    head = "".join(
        f'<th scope="col"{_class(marks[header])}><button type="button">{_header(header)}</button></th>'
        for header in cells
    )
    rows = []
    for place, line in enumerate(zip(*cells.values(), strict=True)):
        tds = [
            f"<td{_class([*marks[header], *['best'] * ((header, place) in best)])}>{escape(cell)}</td>"
            for header, cell in zip(cells, line, strict=True)
        ]
        if colours:
            tds[0] = tds[0].replace("<td>", f"<td>{swatch(*colours[place])}", 1)
        rows.append(f"<tr>{''.join(tds)}</tr>")
    return (
        f'<div class="wide"><table id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def swatch(colour: str, dash: str) -> str:
    """The line of a run, as figures draw it."""
    style = {"solid": "solid", "dot": "dotted"}.get(dash, "dashed")
    return f'<span class="swatch" style="border-top:3px {style} {colour}"></span>'


def prose(text: str) -> str:
    """A sentence, in which no number stands apart from its percent sign."""
    return escape(text).replace(" %", "&nbsp;%")


def definitions(facts: Mapping[str, str]) -> str:
    pairs = [f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items()]
    return f"<dl>{''.join(pairs)}</dl>"


def lines(said: Sequence[str]) -> str:
    return f'<p class="quiet">{"<br>".join(map(prose, said))}</p>'


def fold(summary: str, *html: str) -> str:
    """What opens when it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(html)}</details>"


def slug(heading: str) -> str:
    """A heading as a name for files and places."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "figure"


def unused(name: str, known: Mapping[str, object]) -> str:
    """The name, or with the first number that makes it new."""
    return next(one for one in (name, *(f"{name}-{k}" for k in range(2, len(known) + 3))) if one not in known)


def _header(header: str) -> str:
    return escape(header.replace("-\n", ""))


def _class(names: Sequence[str]) -> str:
    return f' class="{" ".join(names)}"' if names else ""
