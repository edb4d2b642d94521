"""How messages write the options with which a file is read, and hyper-parameters."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

_FLAGS: Final[Mapping[str, str]] = {"columns": "--column", "null_values": "--null"}


def reading_flag(field: str) -> str:
    """The option of the command line for a field of the reading options: ``--skip-lines``."""
    return _FLAGS.get(field, "--" + field.replace("_", "-"))


def setting_hint(name: str, value: str) -> str:
    """A hyper-parameter as requests and as the command line take it: ``seed=1 (--set seed=1)``."""
    said = f"{name}={value}"
    return f"{said} (--set {shlex.quote(said)})"


def reading_hint(field: str, *values: str) -> str:
    """An option as requests and as the command line take it: ``header=no (--header no)``.

    values: one, or several of a list. Each is cut after 80 characters.
    """
    shown = [f"{value:.80}" for value in values]
    flags = " ".join(f"{reading_flag(field)} {shlex.quote(value)}" for value in shown)
    listed = [f'"{value}"' if field in _FLAGS and "," in value else value for value in shown]
    return f"{field}={','.join(listed)} ({flags})"
