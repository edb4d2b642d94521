"""Programs that look for faults: ``python -m verification [NAME [OPTIONS]]``; without a name, their list."""

from __future__ import annotations

import sys
from typing import Final

from tests.system.programs import run

WHOLE: Final = ("chaos", "hostile", "isolation", "fuzz", "upgrade")
OF_TWO_VERSIONS: Final = ("digests",)

if __name__ == "__main__":
    modules = {name: f"verification.{name}" for name in WHOLE + OF_TWO_VERSIONS}
    sys.exit(run("verification", modules, WHOLE, sys.argv[1:]))
