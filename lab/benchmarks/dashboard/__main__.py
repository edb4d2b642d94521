"""Measure dashboard and traces on a real server.

    python -m lab.benchmarks.dashboard [--quick] [--only PART]

The server is one process on SQLite, pinned to a core; clients are on another one. The last line is JSON:

tabs_p99_ratio      p99 of queries beside 20 open dashboard tabs : without, median of the rounds (≤ 1.1)
tabs_requests       fragments that the tabs received a second, and tabs_unchanged: share answered with 304
page_bytes          the largest page with its style sheet and scripts, uncompressed (≤ 100 000); page_bytes_of
first_paint_ms      first contentful paint by Chromium on loopback with an empty cache: the slowest page,
                    median of its visits (≤ 300); null if Chromium is not installed
big_job_ms          time of the page of a job with 10 000 classes, median (≤ 50); big_compare_ms: two versions
beat_ms             processor time of a server's row of live figures, which it writes every two seconds, with
                    100 models that are asked; beat_share: of the two seconds; beat_bytes: of the row
trace_off_ratio     processor time of a query without traces : in the version before traces
trace_sampled_ratio with a collector and 1 % of the queries sampled : in the version before traces
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.benchmarks.dashboard import beats, pages, tabs, traces
from lab.benchmarks.dashboard.content import fill
from lab.benchmarks.dashboard.site import Site, serve

Json = dict[str, Any]
PARTS: dict[str, Callable[[Site, bool], Json]] = {"tabs": tabs.measure, "pages": pages.measure}
ALONE = ("beats", "traces")
"""Parts that need no running site."""


def main(arguments: list[str]) -> Json:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.dashboard")
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a measurement")
    parser.add_argument("--only", choices=[*PARTS, *ALONE], action="append", help="only this part")
    parser.add_argument("--before", default="", help="the version before traces: a commit or a folder")
    options = parser.parse_args(arguments)
    wanted = options.only or [*PARTS, *ALONE]
    found: Json = {}
    if set(wanted) & set(PARTS):
        with tempfile.TemporaryDirectory(prefix="stms-dashboard-") as folder:
            content = fill(Path(folder))
            with serve(Path(folder), content) as site:
                for name in PARTS:
                    if name in wanted:
                        found |= PARTS[name](site, options.quick)
    if "beats" in wanted:
        found |= beats.measure(options.quick)
    if "traces" in wanted:
        found |= traces.measure(options.before, options.quick)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
