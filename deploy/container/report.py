"""Output of a test run: one line per check, and one JSON object at the end."""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from deploy.container.engines import EngineFailed, Missing

FAILED, MISSING = 1, 3


class Refuted(Exception):
    """A check failed."""


class Report:
    """Prints checks and collects figures; a failed check raises Refuted."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        self._started = time.monotonic()

    def say(self, line: str) -> None:
        """Print a line with the elapsed seconds."""
        print(f"{time.monotonic() - self._started:7.1f} s  {line}", flush=True)

    def holds(self, fact: bool, sentence: str) -> None:
        """Check a condition. Raises Refuted if it is false."""
        if not fact:
            raise Refuted(sentence)
        self.say(sentence)

    def figure(self, **values: Any) -> None:
        """Add numbers to the final JSON object."""
        self.figures |= values

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._started


def tell(run: Callable[[Report], None]) -> int:
    """Exit code of a run: 0, 1 if a check failed, 3 if there is no engine or base image."""
    report, code = Report(), 0
    # SIGTERM raises SystemExit, so that containers are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        run(report)
        report.figure(ok=True)
    except Missing as missing:
        print(f"Cannot run here: {missing}", file=sys.stderr, flush=True)
        report.figure(ok=False, missing=str(missing))
        code = MISSING
    except (Refuted, EngineFailed) as fault:
        print(f"FAILED: {fault}", file=sys.stderr, flush=True)
        report.figure(ok=False, failed=str(fault).splitlines()[0])
        code = FAILED
    except Exception as fault:  # noqa: BLE001 - the last line is owed in any case
        traceback.print_exc()
        report.figure(ok=False, failed=f"{type(fault).__name__}: {fault}")
        code = FAILED
    report.figure(total_s=round(report.seconds, 1))
    print(json.dumps(report.figures), flush=True)
    return code
