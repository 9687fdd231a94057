"""`fedexperts report --figures`: every figure as a file for a paper, drawn by a browser that nobody sees."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser

from fedexperts.measure import Record

Cli = Callable[..., tuple[int, str, str]]


def test_figures_table_and_page(cli: Cli, browser: Browser, records: list[Record], tmp_path: Path) -> None:
    del browser  # it is there, so kaleido finds it too
    places = {"--out": tmp_path / "page.html", "--figures": tmp_path / "figures", "--latex": tmp_path / "table.tex"}
    words = [word for pair in places.items() for word in pair]
    code, out, err = cli("report", records[2].folder, "--no-pictures", *words)
    assert (code, err) == (0, "")
    names = {path.stem for path in places["--figures"].iterdir()}
    assert "accuracy-over-the-rounds" in names
    assert len(names) > 5
    assert f"figures: {3 * len(names)} in " in out.replace("\n", " ")
    for name in names:
        assert (places["--figures"] / f"{name}.pdf").read_bytes().startswith(b"%PDF-")
        assert (places["--figures"] / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
        assert "," in (places["--figures"] / f"{name}.csv").read_text(encoding="utf-8").splitlines()[0]
    assert r"\begin{tabular}" in places["--latex"].read_text(encoding="utf-8")
    assert "Standalone" in places["--out"].read_text(encoding="utf-8")
