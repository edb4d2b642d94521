"""Puts the Markdown of the site into one folder: pages of ``docs``, start page, generated pages."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from docs.site import commands, http_api, python_api, settings

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ROOT / "docs"
HERE: Final = Path(__file__).parent
GENERATED: Final[dict[str, Callable[[], str]]] = {
    "reference/commands.md": commands.page,
    "reference/settings.md": settings.page,
    "reference/http.md": http_api.page,
    "reference/client.md": python_api.client_page,
    "reference/core.md": python_api.core_page,
}
"""Pages that are written from the code at each build, by their place in the site."""
COPIED: Final = ("*.md", "*.svg", "*.png", "*.webp")


def stage(folder: Path) -> Path:
    """Write configuration and pages into ``folder``, which is emptied first; returns the configuration."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    for pattern in COPIED:
        for path in sorted(PAGES.rglob(pattern)):
            if path.is_relative_to(HERE):
                continue
            target = pages / path.relative_to(PAGES)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    shutil.copyfile(HERE / "index.md", pages / "index.md")
    for name, write in GENERATED.items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(write(), encoding="utf-8")
    (pages / "reference" / "openapi.json").write_text(http_api.openapi_json(), encoding="utf-8")
    config = folder / "zensical.toml"
    config.write_text(configuration(), encoding="utf-8")
    return config


def configuration() -> str:
    """The configuration of Zensical, with the pages of whole folders in its navigation."""
    text = (HERE / "zensical.toml").read_text(encoding="utf-8")
    text = re.sub(r"^@PAGES (\w+)@$", _entries, text, flags=re.MULTILINE)
    return text.replace("@ROOT@", ROOT.as_posix())


def _entries(folder: re.Match[str]) -> str:
    """A line for each page of a folder; the site shows the page's title."""
    paths = sorted((PAGES / folder[1]).glob("[!R]*.md"))
    return "\n".join(f'      "{path.relative_to(PAGES).as_posix()}",' for path in paths)
