"""The documents say what the program does: links, paths, settings, commands and the README's two commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.settings import Settings

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_links_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        assert target.startswith("http") or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_files_that_are_named_exist(path: Path):
    named = re.findall(
        r"`((?:core|app|tests|docs|benchmarks|migrations)/[\w/.-]+)`", path.read_text(encoding="utf-8")
    )
    for target in named:
        assert (ROOT / target).exists(), target


def test_every_setting_is_documented_with_its_default():
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `STMS_(\w+)` \| ([^|]*) \|", text, re.MULTILINE))
    actual = {
        name.upper(): "" if field.default is None else str(field.default)
        for name, field in Settings.model_fields.items()
    }
    assert {name: default.strip() for name, default in documented.items()} == actual


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_make_targets_that_are_named_exist(path: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert (
        set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        <= targets
    )


def test_the_readme_fits_on_one_screen_and_begins_with_its_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 50
    assert re.findall(r"^ {4}make (\w+)", text, re.MULTILINE)[:2] == ["demo", "test"]
