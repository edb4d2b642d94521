"""Programs that measure accuracy: ``python -m studies [NAME [OPTIONS]]``; without a name it lists them."""

from __future__ import annotations

import sys
from typing import Final

from tests.system.programs import run

PROGRAMS: Final = (
    *("accuracy", "budgets", "compact", "defaults", "false_positives", "gaps", "learners", "rejections"),
    *("studies.rejections.heads", "studies.rejections.queries", "texts", "tuning"),
    *("experiments.reproduce", "experiments.protocol_2"),
)

if __name__ == "__main__":
    sys.exit(run("studies", PROGRAMS, PROGRAMS, sys.argv[1:]))
