"""The peak of a training run's memory beside the estimate by which a job is refused.

    python -m lab.benchmarks.memory [NAME …]

Each run of `RUNS` prepares and trains as many students as it has threads, in a process of its own, as a
solver does; its peak is the largest VmData of /proc, which the limit of a solver counts. The last line is
JSON with rows, classes, columns, peak and estimate in MB of each run, and ``ratio``, estimate : peak, which
should be from 1 to 2.5.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.domain.training_spec import TrainingSpec
from app.services.training_plan import config_of
from core.training.memory import RunShape, peak_bytes

THREADS: Final = 2
_LINEAR: Final = {"automatic": False, "features": {"kind": "linear"}, "evaluation": {"test_fraction": None}}
_NYSTROEM: Final = _LINEAR | {"features": {"kind": "nystroem", "n_components": 500}}
_F1: Final = {"threshold": {"rule": "f1", "folds": 3}}
RUNS: Final[dict[str, tuple[int, int, int, dict[str, Any]]]] = {
    "classes": (16_000, 1000, 100, _LINEAR | {"student": {"method": "gsvm"}, "teacher": {"max_epochs": 20}}),
    "folds": (8000, 300, 60, _LINEAR | _F1 | {"student": {"method": "gsvm"}, "teacher": {"max_epochs": 20}}),
    "kernel": (20_000, 5, 20, _NYSTROEM | {"student": {"method": "gsvm"}, "teacher": {"max_epochs": 10}}),
    "forest": (4000, 200, 40, _LINEAR | {"teacher": {"method": "forest", "trees": 50}}),
    "boosting": (8000, 10, 40, _LINEAR | {"teacher": {"method": "boosting", "iterations": 50}}),
    "interpolation": (6000, 10, 20, _LINEAR | {"teacher": {"method": "interpolation"}}),
    "mcodm": (8000, 300, 60, _LINEAR | {"teacher": {"method": "mcodm", "max_epochs": 10}}),
    "automatic": (6000, 5, 20, {"automatic": True, "evaluation": {"test_fraction": None}}),
}
"""Rows, classes, columns and hyper-parameters by the name of the run."""
_PAUSE: Final = 0.01


def estimate(name: str) -> int:
    """Bytes that a run is said to need."""
    rows, classes, columns, given = RUNS[name]
    shape = RunShape(rows, 0, columns, classes, 8 * rows * columns, threads=THREADS)
    return peak_bytes(config_of(TrainingSpec.model_validate(given)), shape)


def train(name: str) -> int:
    """Carry out a run in this process, and return the largest VmData in bytes."""
    from app.jobs.solver.job_data import JobData
    from app.jobs.solver.main import load_session
    from app.jobs.solver.session import TrainingSession
    from core.data.dataset import LabelledData
    from core.run import Run

    rows, classes, columns, given = RUNS[name]
    load_session()
    with Peak() as peak:
        rng = np.random.default_rng(0)
        centres, y = rng.normal(size=(classes, columns)), np.arange(rows) % classes
        X = centres[y] + 0.7 * rng.normal(size=(rows, columns))
        data = LabelledData.from_arrays(X, y.astype(str))
        del X
        spec = TrainingSpec.model_validate(given)
        session = TrainingSession.prepared(JobData(data, None), spec, Run(n_threads=THREADS))
        for batch in session.batches([(target, spec.served_method) for target in range(THREADS)]):
            context = session.context(batch, THREADS, lambda _progress: None)
            with ThreadPoolExecutor(THREADS) as pool:
                trained = [
                    pool.submit(session.student, *key, context, lambda _progress: None) for key in batch
                ]
            for student in trained:
                student.result()
    return peak.bytes


class Peak:
    """The largest VmData of this process during a block. bytes: at its end."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_PAUSE):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            (size,) = (line.split()[1] for line in lines if line.startswith("VmData:"))
            self.bytes = max(self.bytes, 1024 * int(size))


def measured(name: str) -> dict[str, float]:
    """The figures of a run, which another process carries out."""
    command = [sys.executable, "-m", "lab.benchmarks.memory", "--child", name]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    needed = estimate(name)
    rows, classes, columns, _ = RUNS[name]
    return {
        "rows": rows,
        "classes": classes,
        "columns": columns,
        "peak_mb": round(peak / 1e6),
        "estimate_mb": round(needed / 1e6),
        "ratio": round(needed / peak, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}; by default all")
    parser.add_argument("--child", choices=RUNS, help="carry out a run here, and print its peak")
    given = parser.parse_args()
    if given.child is not None:
        print(train(given.child))
        return
    print(json.dumps({name: measured(name) for name in given.names or RUNS}))


if __name__ == "__main__":
    main()
