"""STMS core: one multiclass teacher, many small binary students.

The public names are listed once, in ``__init__.pyi``. They are loaded when they are first used, so that
``import core.packed`` in a process that only answers queries loads none of the training code:

    from core import LabelledData, TrainingConfig, train
    model = train(LabelledData.from_arrays(X, y), TrainingConfig())
    model.students["7"].decide(X_new)
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def _homes() -> dict[str, str]:
    """The module of each public name, read from the stub file."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_homes())
    if name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_homes()[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})
