"""How much of a job's whole work is done, and when the job will end.

Each stage has a share of the job, as it was in measured jobs. Within a stage its students count, or its time
against the time that the stages before it let expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.domain.entities import STAGES, Job, JobState

_CHOICE: Final[Mapping[str, float]] = {"labels": 0.1, "data": 0.05, "choice": 0.25, "families": 0.7}
_SEARCH: Final[Mapping[str, float]] = {"setting": 3.0, "contest": 0.5}
_TEACHER: Final[Mapping[str, float]] = {
    "features": 0.03,
    "teacher": 0.15,
    "scores": 0.01,
    "tuning_teacher": 0.08,
    "student_kinds": 0.01,
}
_TWO_STUDENTS, _GROWTH, _MOST_STUDENTS = 0.09, 0.4, 0.6
"""Share of two students in a whole job, the power of their number by which it grows, and its limit."""
_STEADY: Final = 0.8
"""Part of a stage up to which its time counts evenly; a longer stage comes ever nearer to its end."""
_LEAST_SECONDS: Final = 1.0
_PUBLISHED: Final = 0.99
_ESTIMATED: Final = 0.5
_PACE, _FEW_STUDENTS = 0.1, 10
"""Parts from which on an end is estimated: of the job, and of its students, for their pace; or so many."""


def share_done(job: Job, now: float) -> float:
    """Part of a job that is done, about, in [0, 1]; within an attempt it never falls.

    now: seconds since the epoch.
    """
    if job.state is JobState.SUCCEEDED:
        return 1.0
    at = _reached(job)
    return 0.0 if at is None else min(_PUBLISHED, at.before + at.share * at.part(job.finished_at or now))


def estimated_finish(job: Job, now: float) -> float | None:
    """When a running job will end at its present pace, in seconds since the epoch; None without an estimate.

    Once ten students or a tenth of them are done, their pace counts. Before that there is an estimate in the
    second half of a job's first attempt, unless its stage lasts longer than its share lets expect.
    """
    at = _reached(job)
    if job.state is not JobState.RUNNING or at is None:
        return None
    lasted = now - at.since
    if lasted > 0.0 and at.has_pace:
        return now + lasted * (1.0 - at.students_done) / at.students_done
    share = share_done(job, now)
    if job.attempt or share < _ESTIMATED or lasted > at.expected:
        return None
    return now + (now - at.began) / share * (1.0 - share)


@dataclass(frozen=True, slots=True)
class _Reached:
    """The stage of a job. share: of the job. before: of the stages before it.

    began, since: epoch seconds of the first stage's start, and of its own. students: of this attempt.
    students_done: part of them.
    """

    share: float
    before: float
    began: float
    since: float
    students: int
    students_done: float

    @property
    def has_pace(self) -> bool:
        """Whether enough students are done to tell how fast the others will be."""
        return self.students_done >= min(_PACE, _FEW_STUDENTS / self.students)

    @property
    def expected(self) -> float:
        """Seconds of the stage, from those of the stages before it."""
        return max(_LEAST_SECONDS, self.share / max(self.before, 1e-9) * (self.since - self.began))

    def part(self, now: float) -> float:
        """Part of the stage that is done."""
        time = max(0.0, now - self.since) / self.expected
        if time > _STEADY:
            time = 1.0 - (1.0 - _STEADY) ** 2 / (1.0 + time - 2.0 * _STEADY)
        return max(time, self.students_done)


def _reached(job: Job) -> _Reached | None:
    """The last stage that this attempt has begun; None before the first."""
    starts: Mapping[str, float] = job.provenance.get(STAGES) or {}
    shares = _shares(job)
    already = int(job.provenance.get("done_before") or 1)
    students = max(1, job.progress_total - already)
    before = 0.0
    reached: _Reached | None = None
    for stage, share in shares.items():
        if stage in starts:
            done = (job.progress_done - already) / students if stage == "students" else 0.0
            reached = _Reached(share, before, min(starts.values()), starts[stage], students, done)
        before += share
    return reached


def _shares(job: Job) -> dict[str, float]:
    """Share of each stage in the job, in the order of the stages; 1 together."""
    spec = job.spec
    students = min(_MOST_STUDENTS, _TWO_STUDENTS * (max(1, job.progress_total - 1) / 2) ** _GROWTH)
    choice = 1.0 - students - sum(_TEACHER.values())
    left_out = set() if spec.get("labelling") else {"labels"}
    left_out |= set() if spec.get("automatic") else {"choice", "families"}
    shares = {stage: choice * share for stage, share in _CHOICE.items() if stage not in left_out}
    if (spec.get("tuning") or {}).get("scope") == "job":
        shares |= _SEARCH
    shares |= {**_TEACHER, "students": students}
    total = sum(shares.values())
    return {stage: share / total for stage, share in shares.items()}
