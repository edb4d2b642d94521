"""Queries beside what else a service does, and the memory that all of it takes.

tabs_p99   p99 of queries beside 20 open tabs of the dashboard : without, see `lab.benchmarks.dashboard.tabs`
crowd_p99  p99 of queries beside a crowd of another key : without, the worst of the ways of
           `lab.verification.crowds`; crowd_p99_of has each way
memory_mb  proportional memory (PSS) of `stms serve` with its worker, and of `stms api` with one and four
           query processes
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.system.query_service import Service, digits


def tabs(*, quick: bool) -> dict[str, Any]:
    """tabs_p99. Raises RuntimeError."""
    found = _last_line("lab.benchmarks.dashboard", "--only", "tabs", *(["--quick"] if quick else []))
    return {"tabs_p99": found["tabs_p99_ratio"], "tabs_p50": found["tabs_p50_ratio"]}


def crowds(*, quick: bool) -> dict[str, Any]:
    """crowd_p99. Raises RuntimeError."""
    found = _last_line("lab.verification.fairness", *(["--quick"] if quick else []))
    ways = {way: figures["ratio"] for way, figures in found["fairness_ways"].items()}
    return {"crowd_p99": max(ways.values()), "crowd_p99_of": ways, "crowd_failed": found["fairness_failed"]}


def memory() -> dict[str, Any]:
    """memory_mb."""
    forms = {"serve": ("serve", 1), "api": ("api", 1), "api of four": ("api", 4)}
    found = {}
    for name, (command, processes) in forms.items():
        with Service(prepare=digits, serve=command == "serve", processes=processes) as running:
            found[name] = round(sum(map(_proportional_mb, running.pids)))
    return {"memory_mb": found}


def _proportional_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    [line] = [line for line in text.splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024


def _last_line(module: str, *options: str) -> dict[str, Any]:
    """The JSON object that a program prints last. Raises RuntimeError."""
    done = subprocess.run(
        [sys.executable, "-m", module, *options], stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise RuntimeError(f"{module} ended with {done.returncode} and without figures.") from error
    return found
