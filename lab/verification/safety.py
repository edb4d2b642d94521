"""All safety measurements in a row: ``python -m lab.verification.safety``; the last line is JSON."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any, Final

PARTS: Final = {
    "isolation": "verification.isolation",
    "fairness": "lab.verification.fairness",
    "tenants": "lab.verification.tenants",
    "history": "lab.verification.history",
    "simulation": "lab.verification.simulation",
    "power": "lab.verification.power",
    "costs": "lab.verification.costs",
    "fuzz": "verification.fuzz",
    "scale": "lab.verification.scale",
    "limits": "lab.verification.limits",
    "upgrade": "verification.upgrade",
}
"""The module of each part, in the order in which they run."""


def main() -> int:
    """0 if every part succeeded."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.safety", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller measurements, for development")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="only these")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    failed = []
    started = time.monotonic()
    for part in arguments.parts:
        print(f"== {part} (after {time.monotonic() - started:.0f} s)", flush=True)
        measured, code = run_part(part, quick=arguments.quick)
        figures |= measured
        if code:
            failed.append(part)
    figures |= {"failed": failed, "total_s": round(time.monotonic() - started, 1)}
    print(json.dumps(figures))
    return int(bool(failed))


def run_part(part: str, *, quick: bool) -> tuple[dict[str, Any], int]:
    """The figures of one part, empty if it printed none, and its exit code."""
    command = [sys.executable, "-m", PARTS[part], *(["--quick"] if quick else [])]
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line
    try:
        figures = json.loads(last)
    except json.JSONDecodeError:
        return {}, process.returncode or 1
    return (figures if isinstance(figures, dict) else {}), process.returncode


if __name__ == "__main__":
    sys.exit(main())
