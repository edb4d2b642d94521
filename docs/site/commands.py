"""The page of the command line, written from the Typer application."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from app.cli import build
from docs.site.markdown import cell, escaped, table

_COMMON = ("server", "api_key", "tenant", "as_json")
"""Options of all commands that ask a server: shown once."""


def page(app: typer.Typer | None = None) -> str:
    """Every command with its help, arguments and options, in the order of ``stms --help``."""
    root: Any = typer.main.get_command(app or build())
    lines = ["# Command line", "", *_prose(root.help)]
    found = list(_commands(root, "stms"))
    common = {option.name: option for _, command in found for option in command.params}
    lines += ["", "## Options of commands that ask a server"]
    lines += _options([common[name] for name in _COMMON if name in common])
    for title, command in found:
        lines += ["", f"## {title}", "", *_prose(command.help)]
        shared = {option.name for option in command.params} & set(_COMMON)
        lines += _options([option for option in command.params if option.name not in _COMMON])
        if shared:
            names = ", ".join(f"`{_first(common[name])}`" for name in _COMMON if name in shared)
            lines += ["", f"Also [{names}](#options-of-commands-that-ask-a-server)."]
    return "\n".join(lines) + "\n"


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for part, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {part}")
        else:
            yield f"{name} {part}", command


def _prose(text: str | None) -> list[str]:
    """A docstring: its lines that show a command become blocks of code."""
    lines: list[str] = []
    for line in (text or "").splitlines():
        example = re.match(r"(?:(Examples?):\s+|\s+)(stms .*)", line)
        if example:
            lines += ["", *([f"{example[1]}:", ""] if example[1] else []), f"    {example[2]}", ""]
        else:
            lines.append(escaped(line))
    return lines


def _options(options: list[Any]) -> list[str]:
    rows = [
        (_names(option), cell(option.help or ""), _default(option))
        for option in options
        if not getattr(option, "hidden", False)
    ]
    return table(["argument or option", "meaning", "default"], rows)


def _first(option: Any) -> str:
    return str(option.opts[0])


def _names(option: Any) -> str:
    if not _first(option).startswith("-"):
        return f"`{(option.metavar or _first(option)).upper()}`"
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    return names if option.is_flag or not option.metavar else f"{names} `{option.metavar}`"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    variable = f"`{option.envvar}`" if option.envvar else ""
    known = option.default is not None and option.default != [] and not callable(option.default)
    if known and option.is_flag if hasattr(option, "is_flag") else False:
        shown = [*option.opts, *option.secondary_opts][0 if option.default else -1]
        return f"`{shown}`" if option.secondary_opts else ""
    return ", else ".join(filter(None, (variable, f"`{option.default}`" if known else "")))
