"""How a computation runs: its seed, its threads, progress reports and cancellation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from core.errors import Cancelled, Fault, InvalidProblem
from core.types import CancelCheck, Progress, ProgressCallback

_MAX_THREADS = 4096


@dataclass(frozen=True, slots=True)
class Scratch:
    """A folder for the progress of long computations. key: authenticates the files, at most 64 bytes."""

    folder: Path
    key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Run:
    """The execution context that every function of ``core`` which takes long accepts as ``run``.

    seed: of everything random, in [0, 2³² − 1]. Functions that take a ``TrainingConfig`` use the seed of the
        configuration instead.
    n_threads: threads to use, in [1, 4096]; None means one per available processor. No result depends on it.
    progress: called with reports, possibly from several threads.
    should_cancel: called every few milliseconds; computation stops with ``Cancelled`` once it returns True.
    stage_name: name under which all reports are made; None leaves each function its own name.
    scratch: where computations of minutes keep what they have, so that the same one goes on from there after
        an interruption, with the same result; None: it begins anew.

    Raises InvalidProblem for a seed or a number of threads out of bounds.
    """

    seed: int = 0
    n_threads: int | None = None
    progress: ProgressCallback | None = None
    should_cancel: CancelCheck | None = None
    stage_name: str | None = None
    scratch: Scratch | None = None

    def __post_init__(self) -> None:
        faults = [_fault("seed", self.seed, 0, 2**32 - 1)]
        if self.n_threads is not None:
            faults.append(_fault("n_threads", self.n_threads, 1, _MAX_THREADS))
        wrong = [fault for fault in faults if fault is not None]
        if wrong:
            raise InvalidProblem(*wrong)

    @property
    def threads(self) -> int:
        """Number of threads to use."""
        if self.n_threads is not None:
            return self.n_threads
        from joblib import cpu_count  # a process that only answers queries needs no joblib

        return int(cpu_count())

    def check_cancel(self) -> None:
        """Raise Cancelled if the caller asked to stop."""
        if self.should_cancel is not None and self.should_cancel():
            raise Cancelled(f"{self.stage_name or 'run'}: cancelled")

    def report(
        self,
        stage: str,
        done: int,
        total: int,
        objective: float | None = None,
        gap: float | None = None,
        expected_seconds: float | None = None,
    ) -> None:
        """Report progress, see ``Progress``; ``stage`` gives way to the run's own stage name."""
        if self.progress is not None:
            self.progress(Progress(self.stage_name or stage, done, total, objective, gap, expected_seconds))

    def stage(self, name: str) -> Run:
        """The same run, with all reports made under ``name``."""
        return replace(self, stage_name=name)

    def silent(self) -> Run:
        """The same run without progress reports."""
        return replace(self, progress=None)

    def with_seed(self, seed: int) -> Run:
        """The same run with another seed."""
        return replace(self, seed=seed)


def _fault(field: str, value: object, low: int, high: int) -> Fault | None:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return None
    return Fault(field, "out_of_bounds", f"{field} must be an integer in [{low}, {high}], got {value!r}")
