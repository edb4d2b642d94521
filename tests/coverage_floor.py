"""Fails when the branch coverage of a package is below its floor: `tests/coverage_floor.py core=95 app=90`.

Reads the data that the last test run left in `.coverage`.
"""

from __future__ import annotations

import io
import sys

from coverage import Coverage


def measured(package: str) -> float:
    """Percent of the package's lines and branches that ran."""
    coverage = Coverage()
    coverage.load()
    return coverage.report(include=[f"{package}/*"], file=io.StringIO())


def main(floors: list[str]) -> int:
    """Exit code: 0 when every package reaches its floor."""
    status = 0
    for floor in floors:
        package, _, least = floor.partition("=")
        percent = measured(package)
        reached = percent >= float(least)
        print(f"coverage of {package}: {percent:.1f} % (floor {least} %){'' if reached else '  TOO LOW'}")
        status |= not reached
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
