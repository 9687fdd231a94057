"""What every page looks like. Its parts are put in by `page.py`, which has escaped them."""

import hashlib
import json
from base64 import b64encode
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from plotly.offline import get_plotlyjs

SCRIPTS = ("figures.js", "tables.js", "theme.js", "client.js", "live.js", "start.js")


def fill(title: str, body: str, data: str, live: bool = False) -> str:
    """The whole page. The browser is told to run our two scripts only, and to load nothing from anywhere.

    A live page asks the server that it came from for news.
    """
    plotly, script = get_plotlyjs(), _scripts()
    allowed = " ".join(f"'sha256-{_hash(text)}'" for text in (plotly, f"\n{script}"))
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        policy=policy + "; connect-src 'self'" * live,
        style=_asset("page.css"),
        plotly=plotly,
        body=body,
        data=inline(data),
        script=script,
    )


def inline(json_text: str) -> str:
    """JSON as it may stand inside a script element: nothing in it can end that."""
    return json_text.replace("<", "\\u003c")


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@cache
def _asset(name: str) -> str:
    return (files("fedexperts.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _scripts() -> str:
    return "\n".join(map(_asset, SCRIPTS))


@cache
def _hash(text: str) -> str:
    return b64encode(hashlib.sha256(text.encode()).digest()).decode()
