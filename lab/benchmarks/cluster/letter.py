"""letter (26 classes) on one worker and on two: speedup, and time in which no solver works.

fanout_speedup           wall time of a job with the default search for the hyper-parameters of every student
                         on one worker : that on two, one solver thread each; from the start of the job to its
                         end, medians of the rounds
fanout_speedup_accuracy  the same of the job of `lab.studies.accuracy`, half a minute long, without a search
fanout_speedup_default   the same of a job with the default hyper-parameters, seconds long
two_processes_speedup    upper bound on this machine: two processes that fit the students of the job of
                         `lab.studies.accuracy` in parallel without the service, against a single process;
                         median of the rounds
job_overhead             the job of `lab.studies.accuracy` on one worker: the part of the wall time, from
                         submission to the end, in which no solver works on features, teacher or students
overhead_s               where it goes, in seconds of the last job
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from lab.benchmarks.cluster.limit import two_processes_speedup
from lab.benchmarks.cluster.service import Cluster, cluster, run_job
from stms_client import Client
from tests.system.data import FEATURES, LOSS_WEIGHTS, arrays_of, data_folder

_SOLVING = ("features", "teacher", "scores", "tuning_teacher")
_WARM_UP = "first"


@dataclass(frozen=True, slots=True)
class LetterSize:
    """Size of the measurement.

    rows: most training rows. rounds: repetitions with each number of workers. jobs: run one after the other;
    the first is a small one, after which code is compiled and the data are cached by the workers.
    students_side_by_side: number of students that each process fits for two_processes_speedup.
    """

    rows: int = 15_000
    rounds: int = 3
    landmarks: int = 1000
    jobs: tuple[str, ...] = (_WARM_UP, "tuned", "accuracy", "default")
    students_side_by_side: int = 12


def measure(size: LetterSize, *, fanout: bool, overhead: bool) -> dict[str, Any]:
    """Measure the requested figures. Raises RuntimeError if the data set is missing."""
    if not (source := data_folder() / "letter.npz").exists():
        raise RuntimeError(f"{source} is needed: name its folder by STMS_DATA.")
    walls: dict[tuple[str, int], list[float]] = {}
    shares: dict[str, list[float]] = {}
    breakdown: dict[str, Any] = {}
    limits: list[float] = []
    counts = [1, 2] if fanout else [1]
    for number in range(size.rounds):
        if fanout:
            limits.append(two_processes_speedup(size.rows, _features(size), size.students_side_by_side))
        for workers in counts if number % 2 == 0 else reversed(counts):
            with cluster(workers) as service, service.service_client() as client:
                dataset = _upload(service, client, size)
                for name, given in _jobs(size).items():
                    # As for jobs with pauses between them: each worker has a spare solver ready.
                    service.until_idle()
                    job, events = run_job(client, dataset, name, given)
                    walls.setdefault((name, workers), []).append(_seconds(job, "started_at"))
                    if workers == 1:
                        found = spent(job, events)
                        breakdown[name] = found
                        shares.setdefault(name, []).append(found["overhead"])
                    _tell(name, workers, job)
    result: dict[str, Any] = {
        "walls_s": {f"{name} on {n}": _rounded(values) for (name, n), values in walls.items()}
    }
    if fanout:
        result["two_processes_speedup"] = round(statistics.median(limits), 3)
    for name in filter(_WARM_UP.__ne__, size.jobs):
        if fanout:
            medians = {n: statistics.median(walls[name, n]) for n in (1, 2)}
            result[_figure("fanout_speedup", name, "tuned")] = round(medians[1] / medians[2], 3)
        if overhead:
            result[_figure("job_overhead", name, "accuracy")] = round(statistics.median(shares[name]), 4)
    if overhead:
        result["overhead_s"] = breakdown
    return result


def _figure(figure: str, job: str, main: str) -> str:
    """Key of the figure of one job; the main job has no suffix."""
    return figure if job == main else f"{figure}_{job}"


def spent(job: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, float]:
    """Breakdown of the time of a job on one worker with one thread, in seconds; overhead is a fraction."""
    at = {event["type"]: _moment(event["at"]) for event in events}
    first: dict[str, float] = {}
    for event in events:
        first.setdefault(event["type"], _moment(event["at"]))
    teacher = next(event["data"] for event in events if event["type"] == "teacher_finished")
    stages = {name: float(seconds) for name, seconds in teacher["stage_seconds"].items() if name in _SOLVING}
    students = [event["data"] for event in events if event["type"] == "student_finished"]
    solving = sum(stages.values()) + sum(float(student["seconds"]) for student in students)
    wall = _seconds(job, "created_at")
    begun = first["teacher_finished"]
    return {
        "wall": round(wall, 2),
        "solving": round(solving, 2),
        "overhead": round((wall - solving) / wall, 4),
        "queued": round(first["job_started"] - first["job_queued"], 3),
        "preparing_without_solving": round(begun - first["job_started"] - sum(stages.values()), 3),
        "students_without_solving": round(
            at["student_finished"] - begun - sum(float(student["seconds"]) for student in students), 3
        ),
        "finishing": round(_moment(job["finished_at"]) - at["student_finished"], 3),
        **{f"stage_{name}": round(seconds, 2) for name, seconds in stages.items()},
    }


def _jobs(size: LetterSize) -> dict[str, dict[str, Any]]:
    C = LOSS_WEIGHTS["open grid"]
    features = _features(size)
    accuracy = {
        "features": features,
        "teacher": {"C": C[0]},
        "student": {"method": "gsvm", "C": C[1]},
        "evaluation": {"baselines": ["svm", "gsvm0"]},
    }
    known = {
        _WARM_UP: {"teacher": {"max_epochs": 2}, "student": {"max_epochs": 2}},
        "tuned": {"tuning": {}},
        "accuracy": accuracy,
        "default": {},
    }
    return {name: known[name] for name in size.jobs}


def _features(size: LetterSize) -> dict[str, Any]:
    return FEATURES["letter"] | {"n_components": size.landmarks}


def _upload(service: Cluster, client: Client, size: LetterSize) -> str:
    file = service.folder / "letter.npz"
    with arrays_of("letter") as data:
        given = {name: data[name] for name in ("X_train", "y_train", "X_test", "y_test")}
    given["X_train"], given["y_train"] = given["X_train"][: size.rows], given["y_train"][: size.rows]
    np.savez(file, **given)
    return str(client.upload_dataset(file)["id"])


def _seconds(job: dict[str, Any], since: str) -> float:
    return _moment(job["finished_at"]) - _moment(job[since])


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 2) for value in values]


def _tell(name: str, workers: int, job: dict[str, Any]) -> None:
    print(f"  {name:10} {workers} workers  {_seconds(job, 'started_at'):8.2f} s", flush=True)
