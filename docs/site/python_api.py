"""The pages of the Python packages: for each public name an instruction for mkdocstrings."""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path
from typing import Final

import stms_client

ROOT: Final = Path(__file__).parents[2]

_TITLES: Final = {
    "core.data": "Data",
    "core.errors": "Errors",
    "core.estimators": "Estimators for scikit-learn",
    "core.features": "Features",
    "core.learners": "All learners",
    "core.model_selection": "Searches, thresholds and measures",
    "core.packed": "Packed models",
    "core.run": "A run",
    "core.solvers": "Solutions",
    "core.students": "Students",
    "core.teachers": "Teachers",
    "core.training": "Training",
    "core.types": "Types",
}


def public_names() -> dict[str, str]:
    """The public names of ``core``, each with the module that defines it, in the order of the stub file."""
    stub = ast.parse((ROOT / "core" / "__init__.pyi").read_text(encoding="utf-8"))
    return {
        alias.name: str(node.module)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def core_page() -> str:
    """The public names of ``core``, by the part that they belong to."""
    lines = [
        "# The package `core`",
        "",
        "The method without the service. All names are imported from `core`:",
    ]
    lines += ["`from core import STMSClassifier`."]
    for part, names in groupby(public_names().items(), lambda item: ".".join(item[1].split(".")[:2])):
        lines += ["", f"## {_TITLES[part]}"]
        for name, module in names:
            lines += ["", f"::: {module}.{name}", "    options:", "      heading_level: 3"]
    return "\n".join(lines) + "\n"


def client_page() -> str:
    """The client for other programs."""
    names = [name for name in stms_client.__all__ if not name.startswith("Async")]
    lines = ["# The Python client", "", "::: stms_client", "    options:", "      members: false"]
    lines += [
        "      show_root_heading: false",
        "",
        "`AsyncClient` and its `AsyncJob` have the same methods as coroutines.",
    ]
    for name in sorted(names, key=lambda name: name != "Client"):
        lines += ["", f"::: stms_client.{name}", "    options:", "      heading_level: 2"]
        # The methods of a client are those of its parts; an error has more than is of use.
        lines += [f"      inherited_members: {str(name == 'Client').lower()}"]
    return "\n".join(lines) + "\n"
