"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def pipe_table(columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> list[str]:
    """The lines of a table. texts: number of the columns of text, on the left; the others are numbers."""
    rule = ["---"] * texts + ["---:"] * (len(columns) - texts)
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in (columns, rule, *rows))
    return [f"| {' | '.join(row)} |" for row in escaped]
