"""Plain text and tables as Markdown."""

import re
from collections.abc import Iterable, Sequence


def prose(text: str) -> str:
    """A docstring: what stands between backticks is code, nothing else in it is markup."""
    return re.sub(r"`[^`]+`|[\\*_\[\]<>|#]", lambda found: _literal(found[0]), text)


def _literal(piece: str) -> str:
    return piece if piece.startswith("`") else {"<": "&lt;", ">": "&gt;"}.get(piece, f"\\{piece}")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table whose last columns, so many of them, are numbers."""
    marks = ["---"] * (len(header) - numbers) + ["--:"] * numbers
    lines = [header, marks, *rows]
    return "\n".join(f"| {' | '.join(cell.replace(chr(10), ' ') for cell in line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Prose that may stand in a table: a bar in its code would end the cell."""
    return prose(text).replace("|", r"\|") if "`" in text else prose(text)


def size(count: float) -> str:
    """Bytes, as people say them."""
    for unit, limit in (("MB", 1e6), ("kB", 1e3)):
        if count >= limit:
            return f"{count / limit:.3g}\N{NO-BREAK SPACE}{unit}"
    return f"{count:.0f}\N{NO-BREAK SPACE}B" if count else "–"
