"""How results are shown: one line in a console, a small table in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from html import escape
from typing import Any, TypeAlias

Facts: TypeAlias = Mapping[str, object]


class Shown:
    """Shows an object by its ``_facts``: on one line in a console, as a table in a notebook."""

    __slots__ = ()

    def _facts(self: Any) -> Facts:
        """What is shown, by its name, unless it is None; by default the fields of a dataclass."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.repr}

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self._facts().items() if value is not None)
        return f"{type(self).__name__}({facts})"

    def _repr_html_(self) -> str:
        rows = [(name.replace("_", " "), value) for name, value in self._facts().items() if value is not None]
        return html_table(type(self).__name__, (), rows)


class Dataset(Shown, dict[str, Any]):
    """The document of a data set, as the service has sent it."""

    def _facts(self) -> Facts:
        facts = {name: self.get(name) for name in ("id", "name", "rows", "test_rows", "columns")}
        warnings = len(self.get("summary", {}).get("warnings", ()))
        return facts | {"classes": self.get("class_count"), "warnings": warnings or None}


def html_table(title: str, heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table of HTML. rows: the first cell of each is its head. All text is escaped."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr><th>{_text(first)}</th>{''.join(f'<td>{_text(value)}</td>' for value in rest)}</tr>"
        for first, *rest in rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))
