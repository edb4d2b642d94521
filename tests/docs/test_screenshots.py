"""The pictures of the dashboard: every page has one in light and one in dark colours; they can be taken."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from app.web import dashboard
from docs.site.screenshots import FOLDER, SCHEMES, SHOTS, pictures

WITHOUT_PICTURE = ("/ui/fragments/", "/ui/static/", "/ui/tables/")
DOWNLOADS = ("/bundle",)
"""Ends of routes that answer with a file."""
LARGEST_SET = 2_000_000


def pages() -> set[str]:
    """The routes of all pages that a person opens."""
    found = {
        route.path
        for part in dashboard._PARTS
        for route in part.router.routes
        if isinstance(route, APIRoute) and "GET" in route.methods
    }
    shown = {path for path in found - {"/", "/ui/"} if not path.startswith(WITHOUT_PICTURE)}
    return {path for path in shown if not path.endswith(DOWNLOADS)}


@pytest.mark.long  # a new page may be ahead of its picture: `python -m docs.site.screenshots`
def test_every_page_has_a_picture():
    assert {shot.route for shot in SHOTS.values()} == pages()


def test_the_folder_holds_these_pictures_and_is_small():
    assert {path.name for path in FOLDER.iterdir()} == set(pictures())
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < LARGEST_SET
    for path in FOLDER.iterdir():
        head = path.read_bytes()[:12]
        assert (head[:4], head[8:]) == (b"RIFF", b"WEBP"), path.name


def test_the_tour_shows_every_picture_with_a_description():
    text = (FOLDER.parent / "dashboard.md").read_text(encoding="utf-8")
    shown = re.findall(
        r'srcset="images/([\w-]+)-dark\.webp"><img src="images/([\w-]+)-light\.webp" alt="([^"]+)"', text
    )
    assert sorted(dark for dark, _, _ in shown) == sorted(SHOTS)
    assert all(dark == light and alt for dark, light, alt in shown)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed")
def test_the_pictures_can_be_taken(tmp_path: Path):
    from docs.site.screenshots import take

    take(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(pictures())
    for name in SHOTS:
        light, dark = ((tmp_path / f"{name}-{scheme}.webp").read_bytes() for scheme in SCHEMES)
        assert len(light) > 3000, name
        assert light != dark, name
