"""The commands that filled a work folder, so that a report can name them all."""

from __future__ import annotations

from pathlib import Path

_FILE = "commands.txt"


def remember(folder: Path, command: str) -> None:
    """Write a command down, once."""
    if command not in remembered(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _FILE).open("a", encoding="utf-8") as stream:
            stream.write(command + "\n")


def remembered(folder: Path) -> tuple[str, ...]:
    """All commands, in the order of their first call."""
    path = folder / _FILE
    return tuple(path.read_text(encoding="utf-8").splitlines()) if path.exists() else ()
