"""What two cores of this machine give at best: the same students of letter, fitted without any service.

Caches, memory and the physical cores behind virtual ones are shared, with other tenants too, so two processes
that know nothing of each other seldom do twice the work of one.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

from tests.system.data import LOSS_WEIGHTS, arrays_of

_WAIT_SECONDS = 300.0


def two_processes_speedup(rows: int, features: Mapping[str, Any], students: int) -> float:
    """Work that two processes do in the time in which one alone does 1; 2 at most, but for noise.

    rows: of the training part of letter. features: arguments of FeatureSpec. students: fitted by each.

    Raises RuntimeError.
    """
    alone, both = (_seconds(n, rows, features, students) for n in (1, 2))
    return 2.0 * alone / both


def _seconds(processes: int, rows: int, features: Mapping[str, Any], students: int) -> float:
    """Until the last of some processes that begin together has fitted its students."""
    context = multiprocessing.get_context("spawn")
    begin, took = context.Barrier(processes), context.Queue()
    started = [
        context.Process(target=_fit, args=(rows, dict(features), students, begin, took), daemon=True)
        for _ in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(_WAIT_SECONDS)
        if process.exitcode != 0:
            raise RuntimeError("A process that fits students without the service did not end well.")
    return float(max(took.get() for _ in started))


def _fit(rows: int, features: dict[str, Any], students: int, begin: Barrier, took: Queue[float]) -> None:
    from core import GSVM, SSVM, FeatureSpec, LabelledData, Run, TrainingConfig
    from core.solvers.threads import one_blas_thread
    from core.training.pipeline import prepare

    with arrays_of("letter") as data:
        train = LabelledData.from_arrays(data["X_train"][:rows], data["y_train"][:rows])
    C = LOSS_WEIGHTS["open grid"]
    made = prepare(train, TrainingConfig(features=FeatureSpec(**features), teacher=SSVM(C[0])))
    spec = GSVM(C=C[1])
    with one_blas_thread():
        spec.fit(made.problem(0), Run())
        begin.wait(_WAIT_SECONDS)
        started = time.perf_counter()
        for target in range(students):
            spec.fit(made.problem(target), Run())
        took.put(time.perf_counter() - started)
