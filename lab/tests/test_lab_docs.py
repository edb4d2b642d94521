"""Documents name programs of the laboratory and of verification that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lab.benchmarks.__main__ as speed
import lab.studies.__main__ as accuracy
import lab.verification.__main__ as faults

ROOT = Path(__file__).parents[2]
OWN = ROOT / "lab" / "README.md"
DOCUMENTS = [ROOT / "README.md", OWN, *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
PROGRAMS = {
    "verify": tuple(faults.PROGRAMS),
    "bench": speed.PROGRAMS,
    "study": accuracy.PROGRAMS,
}


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_programs_that_are_named_exist(path: Path):
    text = path.read_text(encoding="utf-8")
    for group, name in re.findall(r"make (verify|bench|study) NAME=([\w.]+)", text):
        assert name in PROGRAMS[group]
    for module in re.findall(r"python -m ((?:lab|verification)[\w.]*\w)", text):
        file = ROOT / module.replace(".", "/")
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), module


def test_what_the_readme_of_the_laboratory_names_exists():
    text = OWN.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (OWN.parent / target).exists(), target
    for target in re.findall(r"`((?:lab|tests|docs|core|app)/[\w/.-]+)`", text):
        assert (ROOT / target).exists(), target
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.MULTILINE)) <= set(targets)


def test_the_readme_of_the_laboratory_names_every_program():
    text = OWN.read_text(encoding="utf-8")
    named = {name for names in PROGRAMS.values() for name in names}
    assert {name for name in named if f"`{name}`" not in text} == set()
