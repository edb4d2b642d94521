"""From a file to the first model by `stms train`, beside scikit-learn.

    python -m lab.benchmarks first_model [part …] [--sets NAME …] [--quick]

parts:
  jobs     seconds of `stms train FILE --test FILE` on a server that waits, and F, beside a linear model,
           extra trees and gradient boosting of scikit-learn on the same encoded rows and all processors
  cold     how much longer the first job takes after an installation, which has compiled the kernels
  busy     the job of titanic beside eight busy loops, and queries beside a job
  service  what `stms serve` costs before a job: ready_s and ready_cpu_s until it is ready, idle_share of a
           core and idle_mb while nobody asks
  image    what only serves: serving_image_mb of the image, or of the packages above the base where there is
           no container engine (serving_image_of says which); serving_cold_s and serving_cold_cpu_s from the
           start of `stms api --bundle` to its first answer; serving_mb of memory (PSS)

Sets are made in a temporary folder, from $STMS_RAW or ../shared/raw and $STMS_DATA or ../shared/data.
--quick: three small sets. The last line is a JSON object: ``NAME_s`` of every set;
``worst_ratio_to_best_peer``, the largest seconds of a job over those of the fit of its set's best classifier,
of the sets where that takes more than a second; ``mean_f1_vs_best_peer``, in points; ``by_set``;
``cold_extra_s``; ``busy_ratio``, seconds of a job beside eight busy loops of one session over its quiet ones;
and p99 of queries at 200 a second, ``query_p99_quiet_ms``, ``query_p99_beside_job_ms`` and, with solvers of
niceness 19, ``query_p99_beside_job_formerly_ms``; and the figures of service and image. What was not
measured is null.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.commands.demo.temporary_server import TemporaryServer, temporary_server
from lab.benchmarks.first_model.busy import busy_ratio, query_p99s
from lab.benchmarks.first_model.files import FILES
from lab.benchmarks.first_model.jobs import peers, trained
from lab.benchmarks.first_model.service import service
from lab.benchmarks.first_model.serving_image import FIGURES, serving_image

Json = dict[str, Any]
PARTS: Final = ("jobs", "cold", "busy", "service", "image")
_QUICK_SETS: Final = ("titanic", "telco", "sms")
_SINGLE: Final = (
    *("cold_extra_s", "busy_ratio", "query_p99_quiet_ms"),
    *("query_p99_beside_job_ms", "query_p99_beside_job_formerly_ms"),
    *("ready_s", "ready_cpu_s", "idle_share", "idle_mb"),
)
_IDLE_SECONDS: Final = 60.0
_QUICK_IDLE_SECONDS: Final = 10.0
_LONG: Final = 1.0
"""Seconds of the best classifier's fit from which on ratios to it say something."""


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m lab.benchmarks first_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("parts", nargs="*", metavar="part", help="what to measure; all if none is named")
    made.add_argument("--sets", nargs="+", choices=sorted(FILES), metavar="NAME")
    made.add_argument("--quick", action="store_true")
    return made


@contextmanager
def _waiting_server(**settings: str) -> Iterator[TemporaryServer]:
    with tempfile.TemporaryDirectory() as folder, temporary_server(Path(folder), **settings) as server:
        yield server


def of_jobs(names: Sequence[str], folder: Path) -> dict[str, Json]:
    """The job and the classifiers of each set."""
    figures: dict[str, Json] = {}
    with _waiting_server() as server:
        for name in names:
            files = FILES[name](folder)
            job = trained(server, files, name.replace("_", "-"))
            figures[name] = {"job": job, **peers(files)}
            print(name, json.dumps(figures[name]), file=sys.stderr, flush=True)
    return figures


def summary(figures: dict[str, Json]) -> Json:
    """The figures of all sets in few numbers."""
    ratios, gains = [], []
    for of_set in figures.values():
        best = max((one for name, one in of_set.items() if name != "job"), key=lambda one: one["f1"])
        gains.append(100.0 * (of_set["job"]["f1"] - best["f1"]))
        if best["seconds"] > _LONG:
            ratios.append(of_set["job"]["seconds"] / best["seconds"])
    return {
        **{f"{name}_s": round(of_set["job"]["seconds"], 2) for name, of_set in figures.items()},
        "worst_ratio_to_best_peer": round(max(ratios), 2) if ratios else None,
        "mean_f1_vs_best_peer": round(float(np.mean(gains)), 2),
        "by_set": figures,
    }


def cold_extra(folder: Path) -> float:
    """Seconds by which the first job takes longer than the second, in a cache filled by `core.kernels`."""
    files = FILES["titanic"](folder)
    seconds = []
    before = os.environ.get("NUMBA_CACHE_DIR")
    os.environ["NUMBA_CACHE_DIR"] = str(folder / "kernels")
    try:
        subprocess.run([sys.executable, "-m", "core.kernels"], check=True, stdout=subprocess.DEVNULL)
        for _ in range(2):
            with _waiting_server() as server:
                seconds.append(trained(server, files, "titanic")["seconds"])
    finally:
        if before is None:
            del os.environ["NUMBA_CACHE_DIR"]
        else:
            os.environ["NUMBA_CACHE_DIR"] = before
    return float(seconds[0] - seconds[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    given = parser().parse_args(arguments)
    parts = given.parts or list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        print(f"There is no part {unknown[0]}; the parts are {', '.join(PARTS)}.", file=sys.stderr)
        return 2
    names = given.sets or (list(_QUICK_SETS) if given.quick else list(FILES))
    result: Json = {f"{name}_s": None for name in FILES} | dict.fromkeys((*_SINGLE, *FIGURES))
    with tempfile.TemporaryDirectory() as folder:
        if "jobs" in parts:
            result |= summary(of_jobs(names, Path(folder)))
        if "cold" in parts:
            result["cold_extra_s"] = round(cold_extra(Path(folder)), 2)
        if "busy" in parts:
            result["busy_ratio"] = round(busy_ratio(Path(folder)), 2)
            result |= query_p99s(Path(folder))
        if "service" in parts:
            result |= service(_QUICK_IDLE_SECONDS if given.quick else _IDLE_SECONDS)
        if "image" in parts:
            result |= serving_image(Path(folder))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
