"""The documents say what the program does: links, paths, settings, commands and the README's two commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from app.cli import build
from app.domain.file_formats import LABELS
from app.processes.os_process import ProcessName
from app.settings import Settings

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
"""The start page there is at home in the built site, which has checks of its own."""
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if not path.is_relative_to(SITE)),
]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_links_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        assert target.startswith("http") or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS[1:], ids=NAMES[1:])
def test_links_of_the_site_stay_within_it(path: Path):
    """Files of code are named between backticks, since the documentation site does not have them."""
    for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        assert target.startswith("http") or (path.parent / target).resolve().is_relative_to(ROOT / "docs"), (
            target
        )


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_files_that_are_named_exist(path: Path):
    named = re.findall(
        r"`((?:core|app|tests|verification|lab|deploy|docs|migrations)/[\w/.-]+)`",
        path.read_text(encoding="utf-8"),
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


def test_every_format_of_files_is_documented():
    text = (ROOT / "docs" / "user-guide.md").read_text(encoding="utf-8")
    table = re.search(r"^\| file \| content \|\n(?:\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    assert set(LABELS) <= {row.split("|")[1].strip(" `") for row in table[0].splitlines()}


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_make_targets_that_are_named_exist(path: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.MULTILINE)) <= targets


SHOWN_COMMAND = re.compile(r"(?:^|`|\$\(|[ ]{2})(stms [a-z](?:(?![ ]{2}stms )[^`#\n])*)", re.MULTILINE)
NAMES_OF_CONNECTIONS = {"stms migration", "stms command"}
"""What PostgreSQL shows as application_name."""
NAMES_OF_PROCESSES = set(map(str, ProcessName))
"""What `ps` shows."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_commands_and_options_that_are_shown_exist(path: Path, commands: dict[str, set[str]]):
    for line in SHOWN_COMMAND.findall(path.read_text(encoding="utf-8").replace("\\\n", " ")):
        words = line.split()
        group, command = " ".join(words[:2]), " ".join(words[:3])
        name = command if command in commands else group
        assert name in commands or group in NAMES_OF_CONNECTIONS | NAMES_OF_PROCESSES, line
        is_group = any(other.startswith(f"{name} ") for other in commands)
        assert not (is_group and words[2:] and words[2].islower()), f"{line}: no such command"
        options = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        assert options <= commands.get(name, set()), line


@pytest.fixture(scope="module")
def commands() -> dict[str, set[str]]:
    """The options of each command and group of ``stms``."""
    found = {}

    def add(group: Any, name: str) -> None:
        for part, command in group.commands.items():
            if hasattr(command, "commands"):
                add(command, f"{name} {part}")
            found[f"{name} {part}"] = {
                option for parameter in command.params for option in parameter.opts + parameter.secondary_opts
            }

    add(typer.main.get_command(build()), "stms")
    return found


def test_the_readme_fits_on_one_screen_and_begins_with_its_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 50
    assert re.findall(r"^ {4}make (\w+)", text, re.MULTILINE)[:2] == ["demo", "test"]
