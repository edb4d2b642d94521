"""Programs that measure speed: ``python -m lab.benchmarks [NAME [OPTIONS]]``; without a name, their list."""

from __future__ import annotations

import sys
from typing import Final

from tests.system.programs import run

PROGRAMS: Final = (
    *(
        "bundles",
        "cluster",
        "dashboard",
        "first_model",
        "images",
        "inputs",
        "many_classes",
        "memory",
        "object_storage",
        "query",
        "reach",
        "scale",
        "serve",
        "solvers",
        "storage",
        "training",
    ),
    "letter_versions",
)

if __name__ == "__main__":
    modules = {name: f"lab.benchmarks.{name}" for name in PROGRAMS}
    sys.exit(run("lab.benchmarks", modules, PROGRAMS, sys.argv[1:]))
