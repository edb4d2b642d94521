"""Programs that measure accuracy: ``python -m lab.studies [NAME [OPTIONS]]``; without a name, their list."""

from __future__ import annotations

import sys
from typing import Final

from tests.system.programs import run

PROGRAMS: Final = (
    *("accuracy", "budgets", "compact", "defaults", "false_positives", "gaps", "learners", "monitor"),
    *("rejections", "studies.rejections.heads", "studies.rejections.queries", "texts", "tuning"),
    *("experiments.reproduce", "experiments.protocol_2"),
)

if __name__ == "__main__":
    modules = {name: f"lab.{name}" if "." in name else f"lab.studies.{name}" for name in PROGRAMS}
    sys.exit(run("lab.studies", modules, PROGRAMS, sys.argv[1:]))
