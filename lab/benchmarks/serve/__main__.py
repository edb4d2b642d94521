"""Benchmark of our server against a bare handler and against other model servers.

Our server is the real `stms api`, with API keys, limits and metrics, on one core; another core generates the
load. Servers that are compared take turns in short rounds, and each ratio is the median over the rounds. The
last line of the output is a JSON object, with null for what was not measured. Missed targets are printed to
stderr and do not change the exit code.

parts:
  single     one row of 64 numbers in JSON: throughput, p50, p99 at half load
  bulk       10 000 rows in one binary request
  formats    inferences, records and predictions beside native queries, and clients that write in two pieces
  tabs       queries beside 20 open tabs of the dashboard
  crowds     queries beside crowds of another key, in ten ways
  memory     of all processes
  students   kernel and compact students against the full teacher
  processes  CPU time of two server processes against that of one
  swap       requests while an alias moves and all processes are replaced
  million    a linear head of a million classes against one of ten (needs some gigabytes of disk)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.benchmarks import scale
from lab.benchmarks.load import WrkMissing
from lab.benchmarks.serve import beside, bulk, fleet, formats, single, students, swap
from lab.benchmarks.serve.comparison import NORMAL, QUICK
from lab.benchmarks.serve.targets import missed, result_of
from tests.system.processes import two_cores

PARTS = ("single", "bulk", "formats", "tabs", "crowds", "memory", "students", "processes", "swap", "million")
_COPIES = 4
_ROOM = 512 << 20


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m lab.benchmarks.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("parts", nargs="*", metavar="part", help="what to measure; all if none is named")
    made.add_argument(
        "--quick", action="store_true", help="less than a minute: no peers, no million, and rough"
    )
    made.add_argument(
        "--no-peers", action="store_true", help="leave MLServer out, which has to be installed once"
    )
    made.add_argument("--classes", type=int, default=1_000_000, help="of the large head [%(default)s]")
    made.add_argument("--columns", type=int, default=512, help="of the large head [%(default)s]")
    made.add_argument("--folder", type=Path, default=None, help="where to put some gigabytes meanwhile")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit code is 1 if a part could not be measured, 2 without wrk."""
    options = parser().parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser().error(f"there is no part {', '.join(sorted(unknown))}")
    wanted = options.parts or [part for part in PARTS if part != "million" or not options.quick]
    try:
        measured, broken = measure(wanted, options)
    except WrkMissing as error:
        print(error, file=sys.stderr)
        return 2
    result = result_of(measured)
    for line in missed(result):
        print(f"missed: {line}", file=sys.stderr)
    sys.stderr.flush()
    print(json.dumps(result), flush=True)
    return 1 if broken else 0


def measure(wanted: list[str], options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Figures of the parts, measured one after the other, and parts that broke. Raises WrkMissing."""
    cores, pace = two_cores(), QUICK if options.quick else NORMAL
    if cores[0] == cores[1]:
        print(
            "There is one core only: server and load share it, and the figures say little.", file=sys.stderr
        )
    # All that this process does itself belongs to the load.
    os.sched_setaffinity(0, {cores[1]})
    with_mlserver = not (options.no_peers or options.quick)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "single": lambda: single.measure(cores, pace, with_mlserver=with_mlserver),
        "bulk": lambda: bulk.measure(cores, pace),
        "formats": lambda: formats.measure(cores, pace),
        "tabs": lambda: on_all_cores(cores, lambda: beside.tabs(quick=options.quick)),
        "crowds": lambda: on_all_cores(cores, lambda: beside.crowds(quick=options.quick)),
        "memory": beside.memory,
        "students": lambda: students.measure(cores, pace),
        "processes": lambda: fleet.measure(cores, pace),
        "swap": lambda: swap.measure(cores, pace),
        "million": lambda: million(cores, options.classes, options.columns, options.folder),
    }
    measured: dict[str, Any] = {}
    broken = []
    for name in (name for name in parts if name in wanted):
        started = time.monotonic()
        print(f"— {name}", flush=True)
        try:
            measured |= parts[name]()
        except (RuntimeError, ConnectionError) as error:
            # What the other parts have to tell is worth the while.
            print(f"{name} could not be measured: {error}", file=sys.stderr, flush=True)
            broken.append(name)
        print(f"— {name}: {time.monotonic() - started:.0f} s", flush=True)
    return measured, broken


def on_all_cores(cores: tuple[int, int], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The figures of a program that takes the cores itself."""
    os.sched_setaffinity(0, set(cores))
    try:
        return measure()
    finally:
        os.sched_setaffinity(0, {cores[1]})


def million(cores: tuple[int, int], classes: int, columns: int, folder: Path | None) -> dict[str, Any]:
    """The figures of `lab.benchmarks.scale`, in a folder that is removed; none if the disk has no room."""
    needed = _COPIES * 4 * classes * columns + _ROOM
    free = shutil.disk_usage(folder or tempfile.gettempdir()).free
    print(f"{needed / 2**30:.1f} GiB of disk are needed, {free / 2**30:.1f} are free", flush=True)
    if free < needed:
        print("The million classes are left out; another disk can be named by --folder.", file=sys.stderr)
        return {}
    with tempfile.TemporaryDirectory(prefix="stms-scale-", dir=folder) as name:
        found = on_all_cores(cores, lambda: scale.measure(Path(name), classes, columns))
    return {key if key.startswith("million") else f"million_{key}": value for key, value in found.items()}


if __name__ == "__main__":
    sys.exit(main())
