"""Programs that look for faults: ``python -m lab.verification [NAME [OPTIONS]]``; without a name, their list.

Those of `verification` are among them, and ``safety``, which runs the parts of a release one after the other.
"""

from __future__ import annotations

import sys
from typing import Final

import verification.__main__ as product
from tests.system.programs import run

OWN: Final = (
    *("safety", "costs", "fairness", "history", "limits", "power", "revocation", "scale"),
    *("simulation", "streams", "tenants"),
)
PROGRAMS: Final = {name: f"verification.{name}" for name in product.WHOLE + product.OF_TWO_VERSIONS} | {
    name: f"lab.verification.{name}" for name in OWN
}
WHOLE: Final = ("chaos", "hostile", "safety")

if __name__ == "__main__":
    sys.exit(run("lab.verification", PROGRAMS, WHOLE, sys.argv[1:]))
