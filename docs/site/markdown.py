"""Small pieces of Markdown for the generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """Text of one table cell: on one line, with nothing that would end the cell or begin an element."""
    return re.sub(r"\s+", " ", escaped(text)).replace("|", "\\|").strip()


def escaped(text: str) -> str:
    """Text whose angle brackets and asterisks outside of backticks are shown as they are."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[") for part in parts[::2]]
    return "".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table, with an empty line before and after; no lines without rows. Cells are Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return ["", f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines, ""] if lines else []
