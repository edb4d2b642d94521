"""Programs that measure speed: ``python -m benchmarks [NAME [OPTIONS]]``; without a name it lists them."""

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
        "inputs",
        "query",
        "reach",
        "serve",
        "solvers",
        "storage",
        "training",
    ),
    "letter_versions",
)

if __name__ == "__main__":
    sys.exit(run("benchmarks", PROGRAMS, PROGRAMS, sys.argv[1:]))
