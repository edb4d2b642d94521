"""The exceptions of training jobs.

::

    Exception
    ├── JobError              the job cannot go on; ``code`` and ``message`` are for its user
    │   ├── SolverFailed      the solver reports that the job cannot be done
    │   ├── TimeLimitReached  the job has run for longer than its specification allows
    │   ├── UnitLost          a work unit that the job needs ended without a result
    │   └── AttemptLost       this attempt cannot go on, but another one may
    ├── SolverInterrupted     the solver process gave no answer; a new process may
    │   ├── SolverDied        the process ended in the middle of its work
    │   └── SolverBlocked     the process lacks a resource for the moment, such as the database
    ├── InvalidMessage        bytes on the pipe that are not a message
    └── JobStopped            the job is no longer this attempt's: cancelled, retried or ended elsewhere
    BaseException             DBOS would record an Exception as the workflow's result, but not these
    ├── WorkerStopping        the worker shuts down; DBOS recovers the work later
    └── WorkflowOver          DBOS has ended this workflow already; there is nothing left to record

These exceptions are outside of the packages that raise them, because `engine`, `solver` and `workflow` use
them.
"""

from __future__ import annotations


class JobError(Exception):
    """The job cannot continue. code: for programs. message: for its user."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class SolverFailed(JobError):
    """The solver reports that the job cannot be done."""


class UnitLost(JobError):
    """A work unit that the job needs ended without a result."""


class TimeLimitReached(JobError):
    """The job has run for longer than its specification allows."""


class AttemptLost(JobError):
    """This attempt cannot continue, but another may: the job returns to the queue, a few times at most."""


class SolverInterrupted(Exception):
    """The solver process gave no answer; this says nothing about the job."""


class SolverDied(SolverInterrupted):
    """The solver process ended in the middle of its work.

    how: the end of the sentence "The solver process …". in_flight: (class index, method) of the students that
    it was training. hung: whether it was killed because it did nothing any more.
    """

    def __init__(self, how: str, in_flight: frozenset[tuple[int, str]], *, hung: bool = False) -> None:
        super().__init__(f"The solver process {how}.")
        self.how = how
        self.in_flight = in_flight
        self.hung = hung


class SolverBlocked(SolverInterrupted):
    """The solver lacks a resource for the moment, such as the database or disk space.

    code: of the resource's error.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code

    @property
    def by_cache(self) -> bool:
        """Whether the local cache cannot be written."""
        return self.code.startswith("cache_")


class InvalidMessage(Exception):
    """Bytes on the pipe between worker and solver that are not a message."""


class JobStopped(Exception):
    """The job is no longer this attempt's: cancelled, retried or ended by another process."""


class WorkerStopping(BaseException):
    """The worker shuts down. Not an Exception: DBOS must record nothing and recover the work later."""


class WorkflowOver(BaseException):
    """DBOS has ended this workflow already. Not an Exception: there is nothing left to record."""
