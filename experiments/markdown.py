"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def pipe_table(columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> list[str]:
    """The lines of a table. texts: how many columns have text, aligned to the left; the others have numbers."""
    rule = ["---"] * texts + ["---:"] * (len(columns) - texts)
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in (columns, rule, *rows))
    return [f"| {' | '.join(row)} |" for row in escaped]
