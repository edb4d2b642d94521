"""``python -m lab.verification.simulation``: ten thousand schedules of faults on a simulated cluster.

Heartbeats, peers, takeovers, the reconciler and the durable steps are the service's own code; time, database,
job engine and processes are simulated. Every schedule follows from its seed: ``--seed N`` prints one.

Always: a worker is marked as lost only after a silence; a worker marked as lost stops; a student is stored
only by the current attempt of a running job, and once. When the faults are over: within seven seconds no work
is left with a dead worker, and every job ends. The same schedules must find each of five planted bugs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Final

from app.jobs.workflow import steps
from lab.verification.simulated.cluster import TAKEOVER_SECONDS, Cluster, SimulatedWorker, Violation
from lab.verification.simulated.world import Process, World

BUGS: Final = {
    "mark_without_check": "a worker is marked as lost without looking at its heartbeat again",
    "lost_goes_on": "a worker marked as lost goes on sending heartbeats and taking work",
    "takeover_once": "only the worker that marks another as lost takes over its work, and does not try again",
    "any_attempt": "a step does not compare the attempt of its job",
    "cancel_without_end": "the reconciler cancels the workflow of a job and does not end the job",
}
_FAULT_SECONDS: Final = 20.0
_END_SECONDS: Final = 90.0
_CHUNK: Final = 250
_BUG_SCHEDULES: Final = 10_000


def main() -> int:
    """0 if no schedule violates anything, and every planted bug is found."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.simulation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="500 schedules")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, help="run and print this schedule only")
    parser.add_argument("--bug", choices=sorted(BUGS), help="with --seed: plant this bug")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        return _print(arguments.seed, [arguments.bug] if arguments.bug else [])
    figures = measure(500 if arguments.quick else arguments.schedules)
    print(json.dumps(figures))
    return int(bool(figures["violations"]) or figures["planted_found"] < len(BUGS))


def measure(schedules: int, processes: int | None = None) -> dict[str, Any]:
    """``schedules``, ``violations`` and ``planted_found``, with the seeds."""
    began = time.monotonic()
    starts = range(0, schedules, _CHUNK)
    count = processes or min(4, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(count, mp_context=get_context("fork")) as pool:
        pending = [pool.submit(violations, range(at, min(at + _CHUNK, schedules))) for at in starts]
        bugs = {bug: pool.submit(first_violation, range(_BUG_SCHEDULES), [bug]) for bug in BUGS}
        found = [violation for one in pending for violation in one.result()]
        planted = {bug: one.result() for bug, one in bugs.items()}
    for seed, text in found[:10]:
        print(f"seed {seed}: {text}")
    for bug, first in planted.items():
        print(f"planted: {BUGS[bug]}: " + ("NOT FOUND" if first is None else f"seed {first[0]}: {first[1]}"))
    return {
        "schedules": schedules,
        "violations": len(found),
        "planted_found": sum(first is not None for first in planted.values()),
        "simulation_s": round(time.monotonic() - began, 1),
    }


def violations(seeds: Sequence[int], bugs: Collection[str] = ()) -> list[tuple[int, str]]:
    """Seeds and texts of the schedules that violate something."""
    results = ((seed, run(seed, bugs)[0]) for seed in seeds)
    return [(seed, text) for seed, text in results if text is not None]


def first_violation(seeds: Sequence[int], bugs: Collection[str]) -> tuple[int, str] | None:
    """As `violations`, the first only."""
    results = ((seed, run(seed, bugs)[0]) for seed in seeds)
    return next(((seed, text) for seed, text in results if text is not None), None)


def run(seed: int, bugs: Collection[str] = ()) -> tuple[str | None, list[str]]:
    """What a schedule violated, None for nothing; and its log."""
    world = World(seed)
    try:
        with _planted(bugs):
            cluster = Cluster(world, bugs)
            faults = Faults(world, cluster)
            world.run(_FAULT_SECONDS, lambda: False)
            world.run(faults.until, lambda: False)
            world.note("the faults are over")
            world.run(world.now + TAKEOVER_SECONDS, cluster.is_done)
            if not cluster.is_done() and (left := cluster.left_behind()):
                raise Violation(f"{left[0]} is left with a dead worker for {TAKEOVER_SECONDS:.0f} s")
            world.run(faults.until + _END_SECONDS, cluster.is_done)
            cluster.check_end()
    except Violation as violation:
        world.note(str(violation))
        return str(violation), world.log
    finally:
        world.close()
    return None, world.log


class Faults:
    """The faults of a schedule: some at random times, some just after a commit, where they hurt most.

    until: when the last is over, virtual time.
    """

    def __init__(self, world: World, cluster: Cluster) -> None:
        self._world = world
        self._cluster = cluster
        self.until = _FAULT_SECONDS
        self._commit_faults = 0.004 if world.random.random() < 0.5 else 0.0
        cluster.after_commit = self._after_commit
        process = Process("faults")
        for _ in range(world.random.randint(0, 6)):
            world.spawn(process, self._strike, delay=1.0 + (_FAULT_SECONDS - 1.0) * world.random.random())

    def _strike(self) -> None:
        random = self._world.random
        kind = random.choice(
            [self._pause, self._pause, self._crash, self._crash, self._cut_off, self._outage, self._jump]
        )
        kind(random.choice(self._cluster.workers))

    def _after_commit(self, process: Process) -> None:
        world = self._world
        if world.now > _FAULT_SECONDS or world.random.random() >= self._commit_faults:
            return
        for worker in list(self._cluster.workers):
            if worker.process is process:
                # After this commit, and before the process learns of it.
                strike = world.random.choice([self._pause, self._crash])
                world.spawn(Process("faults"), strike, worker)

    def _pause(self, worker: SimulatedWorker) -> None:
        end = self._world.now + self._world.random.uniform(0.5, 12.0)
        self._world.note(f"{worker.process.name} is frozen until {end:.1f}")
        worker.process.frozen_until = max(worker.process.frozen_until, end)
        self.until = max(self.until, end)

    def _crash(self, worker: SimulatedWorker) -> None:
        if worker in self._cluster.workers:
            self._world.note(f"{worker.process.name} crashes")
            self._cluster.crash(worker)

    def _cut_off(self, worker: SimulatedWorker) -> None:
        end = self._world.now + self._world.random.uniform(0.5, 12.0)
        self._world.note(f"{worker.process.name} is cut off from the database until {end:.1f}")
        worker.process.cut_off_until = max(worker.process.cut_off_until, end)
        self.until = max(self.until, end)

    def _outage(self, _worker: SimulatedWorker) -> None:
        end = self._world.now + self._world.random.uniform(0.5, 10.0)
        self._world.note(f"the database is away until {end:.1f}")
        self._cluster.database.away_until = max(self._cluster.database.away_until, end)
        self.until = max(self.until, end)

    def _jump(self, _worker: SimulatedWorker) -> None:
        step = self._world.random.uniform(-5.0, 5.0)
        self._world.note(f"the clock of the database jumps by {step:.1f} s")
        self._cluster.database.clock_offset += step


@contextmanager
def _planted(bugs: Collection[str]) -> Iterator[None]:
    """Plant the bug that is in a function; the others are in the simulated store and worker."""
    lock_job = steps.lock_job
    if "any_attempt" in bugs:
        steps.lock_job = lambda uow, job_id, *_rest: uow.jobs.lock(job_id)
    try:
        yield
    finally:
        steps.lock_job = lock_job


def _print(seed: int, bugs: Collection[str]) -> int:
    violation, log = run(seed, bugs)
    print("\n".join(log))
    print("nothing was violated" if violation is None else f"VIOLATED: {violation}")
    return int(violation is not None)


if __name__ == "__main__":
    sys.exit(main())
