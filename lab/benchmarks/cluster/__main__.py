"""Benchmark of several workers on PostgreSQL: fan-out, overhead, many classes, queries during training.

It runs real `stms api` and `stms worker` processes and submits jobs over HTTP. The last line of the output is
a JSON object. Missed targets are printed to stderr; the exit code is 1 only if a part could not be measured.

parts:
  fanout    the letter data set on two workers against one
  overhead  letter on one worker: the time in which no solver runs
  many      one job of 10 000 classes: latency of status calls, events and other jobs meanwhile
  queries   p99 of warm queries while all cores train, against an idle machine
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from app.commands.demo.temporary_server import sigterm_as_exit
from lab.benchmarks.cluster import letter, many, queries
from lab.benchmarks.cluster.letter import LetterSize
from lab.benchmarks.cluster.many import ManySize
from lab.benchmarks.cluster.queries import QuerySize
from stms_client import StmsError
from tests.system.postgres import NoPostgres

PARTS = ("fanout", "overhead", "many", "queries")
AT_LEAST: Final = {"fanout_speedup": 1.6}
AT_MOST: Final = {"job_overhead": 0.05, "status_p99_ms": 20.0, "query_p99_ratio": 5.0}


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m lab.benchmarks.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--parts", default=",".join(PARTS), help="some of them, by commas [%(default)s]")
    made.add_argument("--quick", action="store_true", help="small and rough: that everything runs")
    made.add_argument(
        "--rounds", type=int, default=3, help="of letter on each count of workers [%(default)s]"
    )
    made.add_argument("--classes", type=int, default=10_000, help="of the job with many [%(default)s]")
    return made


def missed(result: Mapping[str, Any]) -> Iterator[str]:
    """A line for each target that was measured and not met."""
    for key, least in AT_LEAST.items():
        if result.get(key) is not None and result[key] < least:
            yield f"{key} is {result[key]:g}; at least {least:g} is wanted"
    for key, most in AT_MOST.items():
        if result.get(key) is not None and result[key] > most:
            yield f"{key} is {result[key]:g}; at most {most:g} is wanted"


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    options = parser().parse_args(arguments)
    wanted = set(options.parts.split(","))
    if unknown := wanted - set(PARTS):
        parser().error(f"there is no part {', '.join(sorted(unknown))}")
    result: dict[str, Any] = dict.fromkeys((*AT_LEAST, *AT_MOST))
    broken = False
    with sigterm_as_exit():
        for name, measure in _parts(wanted, options).items():
            started = time.monotonic()
            print(f"— {name}", flush=True)
            try:
                result |= measure()
            except (RuntimeError, OSError, StmsError, NoPostgres) as error:
                # What the other parts have to tell is worth the while.
                print(f"{name} could not be measured: {error}", file=sys.stderr, flush=True)
                broken = True
            print(f"— {name}: {time.monotonic() - started:.0f} s", flush=True)
    for line in missed(result):
        print(f"missed: {line}", file=sys.stderr)
    sys.stderr.flush()
    print(json.dumps(result), flush=True)
    return 1 if broken else 0


def _parts(wanted: set[str], options: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    quick = options.quick
    size = LetterSize(2000, 1, 100) if quick else LetterSize(rounds=options.rounds)
    parts: dict[str, Callable[[], dict[str, Any]]] = {}
    if wanted & {"fanout", "overhead"}:
        # The jobs on one worker give both.
        both = {"fanout": "fanout" in wanted, "overhead": "overhead" in wanted}
        parts["letter"] = lambda: letter.measure(size, **both)
    if "many" in wanted:
        parts["many"] = lambda: many.measure(ManySize(300 if quick else options.classes))
    if "queries" in wanted:
        parts["queries"] = lambda: queries.measure(QuerySize(100.0, 3.0, 1) if quick else QuerySize())
    return parts


if __name__ == "__main__":
    sys.exit(main())
