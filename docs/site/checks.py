"""Checks a built site: what its files would load from other addresses, and links to files that it lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_LOADING: Final = frozenset({"src", "poster", "data", "action", "formaction", "background"})
_FOLLOWED: Final = frozenset({"canonical", "alternate", "prev", "next", "author", "license"})
"""Relations of a link element that load nothing."""
_OUTSIDE: Final = re.compile(r"\s*(?:[a-z][a-z+.-]*:)?//[^/\s]", re.IGNORECASE)
_IN_STYLES: Final = re.compile(r"url\(\s*['\"]?([^)'\"\s]+)|@import\s+['\"]([^'\"]+)", re.IGNORECASE)


class _Page(HTMLParser):
    """The addresses of a page: those that a browser loads, and those that a reader may follow."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self._in_style = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.loads += [values[name] for name in _LOADING & set(values)]
        self.loads += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]
        self.loads += _of_styles(values.get("style", ""))
        addresses = [values[name] for name in ("href", "xlink:href") if name in values]
        if tag == "a" or (tag == "link" and set(values.get("rel", "").lower().split()) <= _FOLLOWED):
            self.links += addresses
        else:
            self.loads += addresses

    def handle_endtag(self, tag: str) -> None:
        self._in_style &= tag != "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.loads += _of_styles(data)


def outside(site: Path) -> Iterator[tuple[Path, str]]:
    """Each file of a built site with each address of another server that it makes a browser load."""
    for path in _files(site, ".html", ".svg", ".css"):
        text = path.read_text(encoding="utf-8")
        loads = _of_styles(text) if path.suffix == ".css" else _Page(text).loads
        yield from ((path, address) for address in loads if _OUTSIDE.match(address))


def missing(site: Path) -> Iterator[tuple[Path, str]]:
    """Each page of a built site with each address in it of a file that the site does not have."""
    for path in _files(site, ".html"):
        # The page for wrong addresses is shown at any of them, so its own addresses begin at the root.
        start = site if path.name == "404.html" else path.parent
        page = _Page(path.read_text(encoding="utf-8"))
        for address in dict.fromkeys(page.loads + page.links):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            target = start / unquote(parts.path).lstrip("/" if start == site else "")
            if not target.exists():
                yield path, address


def _files(site: Path, *endings: str) -> Iterator[Path]:
    return (path for path in sorted(site.rglob("*")) if path.suffix in endings)


def _of_styles(styles: str) -> list[str]:
    return [first or second for first, second in _IN_STYLES.findall(styles)]
