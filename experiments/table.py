"""A table of the report, as data that can be written as Markdown or as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a sentence on how to read it, columns and rows of text, and notes below them."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footnotes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """A section with a pipe table."""
        lines = [f"### {self.title}", "", self.note, ""] if self.note else [f"### {self.title}", ""]
        lines.append(_pipes(self.columns))
        lines.append(_pipes(["---", *["---:"] * (len(self.columns) - 1)]))
        lines += [*(_pipes(row) for row in self.rows), ""]
        if self.footnotes:
            lines += [*(f"- Note on {line}" for line in self.footnotes), ""]
        return "\n".join(lines)

    def html(self) -> str:
        """A section with a table."""
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = "\n".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        note = f"<p>{escape(self.note)}</p>\n" if self.note else ""
        notes = "".join(f'<p class="note">Note on {escape(line)}</p>\n' for line in self.footnotes)
        return (
            f"<h3>{escape(self.title)}</h3>\n{note}"
            f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n{notes}"
        )


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
