"""The share of a job that is done, and the estimate of its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.domain.entities import Job, JobState
from app.domain.job_share import estimated_finish, share_done

MEASURED = {
    "titanic": (3, {"data": 0.67, "choice": 0.8, "families": 2.46, "features": 8.68, "teacher": 8.82}
    | {"scores": 11.61, "tuning_teacher": 11.7, "students": 12.16}, 12.98),
    "telco": (3, {"data": 0.57, "choice": 0.65, "families": 2.31, "features": 13.39, "teacher": 14.12}
    | {"scores": 17.68, "tuning_teacher": 17.69, "students": 18.5}, 21.97),
    "sms": (3, {"data": 0.37, "choice": 0.93, "features": 2.7, "teacher": 2.73, "scores": 2.93}
    | {"tuning_teacher": 2.96, "students": 3.71}, 4.0),
    "banking77": (78, {"data": 0.78, "choice": 1.66, "features": 5.4, "teacher": 5.41, "scores": 7.35}
    | {"tuning_teacher": 7.38, "students": 13.58}, 22.19),
}  # fmt: skip
"""Parts, seconds at which stages began, and the end, of jobs on a busy machine of two processors."""


def a_job(**values: Any) -> Job:
    job = Job("job_1", "ds_1", "m", {"automatic": True}, JobState.RUNNING, 0, "", 0, 3, 0.0, "me")
    return replace(job, **values)


def course(name: str) -> list[tuple[float, Job]]:
    """A measured job at a hundred moments, its students evenly through their stage where they are many."""
    parts, stages, end = MEASURED[name]
    moments = []
    for tick in range(1, 100):
        now = stages["data"] + (end - stages["data"]) * tick / 100
        began = {stage: since for stage, since in stages.items() if since <= now}
        done = 0 if "students" not in began else 1
        if done and parts > 3:
            done += int((parts - 1) * (now - stages["students"]) / (end - stages["students"]))
        provenance = {"stages": began, "done_before": 1}
        moments.append((now, a_job(provenance=provenance, progress_done=done, progress_total=parts)))
    return moments


@pytest.mark.parametrize("name", MEASURED)
def test_the_share_of_a_measured_job_rises_and_its_estimated_end_holds_in_the_second_half(name):
    end, shares, estimates = MEASURED[name][2], [], 0
    for now, job in course(name):
        shares.append(share_done(job, now))
        finish = estimated_finish(job, now)
        if finish is not None and now > MEASURED[name][1]["data"] + 0.5 * end:
            estimates += 1
            total = finish - MEASURED[name][1]["data"]
            assert 1 / 1.5 < total / (end - MEASURED[name][1]["data"]) < 1.5, (now, finish)
    assert shares == sorted(shares)
    assert shares[5] > 0.0
    assert shares[-1] > 0.9
    assert estimates > 10


def test_a_queued_job_has_nothing_done_and_one_that_succeeded_all():
    assert share_done(a_job(state=JobState.QUEUED), 100.0) == 0.0
    assert share_done(a_job(state=JobState.SUCCEEDED), 100.0) == 1.0
    began = {"stages": {"data": 90.0, "students": 99.0}}
    assert share_done(a_job(provenance=began, progress_done=3), 1e6) == 0.99, "it is not published yet"


def test_a_job_that_failed_stays_where_it_was():
    failed = a_job(state=JobState.FAILED, finished_at=100.0, provenance={"stages": {"data": 99.0}})
    assert share_done(failed, 100.0) == share_done(failed, 1e6) > 0.0
    assert estimated_finish(failed, 100.0) is None


def test_the_end_is_estimated_from_the_pace_of_the_students_of_this_attempt():
    began = {"stages": {"data": 40.0, "students": 100.0}}
    job = a_job(progress_done=5, progress_total=11, attempt=1, provenance=began)
    assert estimated_finish(job, 150.0) == pytest.approx(150.0 + 50.0 / 4 * 6)
    later = replace(job, provenance=began | {"done_before": 3})
    assert estimated_finish(later, 150.0) == pytest.approx(150.0 + 50.0 / 2 * 6)
    many = replace(job, progress_done=11, progress_total=1001)
    assert estimated_finish(many, 150.0) == pytest.approx(150.0 + 5.0 * 990), "ten are enough"
    assert estimated_finish(replace(many, progress_done=10), 150.0) is None


@pytest.mark.parametrize(
    "values",
    [
        {"state": JobState.QUEUED},
        {"provenance": {}},
        {"provenance": {"stages": {}}},
        {"provenance": {"stages": {"data": 0.0, "choice": 1.0}}},
        {"attempt": 1},
    ],
)
def test_without_much_done_there_is_no_estimate(values):
    job = a_job(provenance={"stages": {"data": 0.0, "teacher": 10.0}})
    assert estimated_finish(job, 11.0) is not None
    assert estimated_finish(replace(job, **values), 11.0) is None


def test_a_stage_that_lasts_longer_than_expected_has_no_estimate():
    job = a_job(provenance={"stages": {"data": 0.0, "teacher": 10.0}})
    assert estimated_finish(job, 30.0) is None


def test_a_job_that_chooses_nothing_has_other_shares():
    began = {"stages": {"data": 0.0, "teacher": 1.0}}
    shares = [
        share_done(a_job(spec=spec, provenance=began), 1.0)
        for spec in ({}, {"automatic": True}, {"automatic": True, "tuning": {"scope": "job"}})
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.2 < shares[1] < shares[2]
    assert (
        share_done(a_job(spec={"labelling": {"kind": "votes"}}, provenance={"stages": {"labels": 0.0}}), 1.0)
        > 0.0
    )
