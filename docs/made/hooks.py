"""What MkDocs calls while it builds the site.

Pages hold `<!-- made: NAME -->…<!-- end -->`: what stands between is what GitHub shows, the site has there what NAME
makes out of the code. README.md, CONTRIBUTING.md and CHANGELOG.md are pages of the site too, and links that lead out of
docs/ lead to those.
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import catalogue
import reference
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent
MAKERS: dict[str, Callable[[], str]] = {
    "methods": catalogue.methods,
    "recipes": reference.recipes,
    "commands": reference.commands,
    "settings": reference.settings,
    "python": reference.python,
    "examples": reference.examples,
}
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository that are pages of the site."""
MADE = re.compile(r"<!-- made: (\w+) -->.*?<!-- end -->", re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: Any) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.parent is None:
        page.meta["hide"] = ["navigation"]  # which would have this page alone
    place = page.file.src_uri
    sources = {page: source for source, page in OUTSIDE.items()}
    here = posixpath.dirname(sources.get(place, f"docs/{place}"))  # in the repository

    def lead(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, found[1]))
        on_site, anchor = _page_of(target), found[2] or ""
        if on_site is None:
            return found[0]
        if target.endswith(".py"):
            anchor = f"#{Path(target).stem}"
        return posixpath.relpath(on_site, posixpath.dirname(place) or ".") + anchor

    markdown = LINK.sub(lead, markdown)
    return MADE.sub(lambda found: MAKERS[found[1]](), markdown)


def _page_of(target: str) -> str | None:
    """The page of the site that a file of the repository is."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return "examples.md" if re.fullmatch(r"examples(/\w+\.py)?", target) else OUTSIDE.get(target)
