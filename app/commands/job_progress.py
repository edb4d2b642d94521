"""Follows a training job through its stored events, with a progress bar and an estimated finish."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from app.commands.output import CommandFailed, Json, console, error_console, percent, text
from app.commands.remote import RemoteServer, job_path

__all__ = ["describe_event", "follow", "job_path", "report_end"]

_RECONNECT_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_POLL_SECONDS = 1.0


def follow(server: RemoteServer, job_id: str, *, quiet: bool = False) -> Json:
    """Show a job's progress until it ends; returns the job. Reconnects after a lost connection.

    quiet: show only the bar, without a line for each event.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    estimate = TextColumn("{task.fields[finish]}")
    with Progress(*columns, estimate, console=error_console(), transient=True) as progress:
        task = progress.add_task("waiting", total=None, finish="")
        polled_at = 0.0
        for event in server.follow(job_id, patience=_RECONNECT_SECONDS, pause=_PAUSE_SECONDS):
            line = describe_event(event.type, event.data)
            if line and not quiet:
                progress.console.print(escape(line))
            if event.type == "stage_progress" and event.data.get("stage") == "tuning":
                progress.update(task, description=f"tuning {event.data.get('label')}")
            if time.monotonic() - polled_at >= _POLL_SECONDS:
                _update(progress, task, server.get(job_path(job_id)))
                polled_at = time.monotonic()
    job: Json = server.get(job_path(job_id))
    return job


def _update(progress: Progress, task: TaskID, job: Json) -> None:
    done, total = job["progress"]["done"], job["progress"]["total"]
    progress.update(
        task,
        description=job.get("stage") or job["state"],
        completed=done,
        total=total or None,
        finish=f"finish about {_local_time(job['estimated_finish'])}" if job.get("estimated_finish") else "",
    )


def _local_time(moment: str) -> str:
    return datetime.fromisoformat(moment).astimezone().strftime("%H:%M:%S")


def describe_event(kind: str, data: Json) -> str | None:
    """An event as one line of text; None for events that only update the bar."""
    match kind:
        case "stage_progress":
            return None
        case "stage_started":
            return _stage_started(data)
        case "teacher_finished":
            return f"teacher finished: {_certificate(data)}{_chosen_features(data.get('features') or {})}"
        case "setting_chosen" | "student_tuned":
            return _setting_chosen(data) if kind == "setting_chosen" else _student_tuned(data)
        case "student_finished":
            f1 = f", F {percent(data['f1'])} %" if data.get("f1") is not None else ""
            return f"student {data.get('method')} of class {data.get('label')}: {_certificate(data)}{f1}"
        case "student_replaced":
            return (
                f"student of class {data.get('label')}: {data.get('replaced')} was clearly worse than its"
                f" teacher on held-out rows; one with several rejections takes its place, with F"
                f" {percent(data.get('student_f1'))} % (teacher {percent(data.get('teacher_f1'))} %)"
            )
        case "student_warning":
            return f"warning, class {data.get('label')}: {data.get('message')}"
        case "student_failed":
            return f"student {data.get('method')} of class {data.get('label')} failed: {data.get('message')}"
        case "version_published":
            alias = f" as {data['alias']}" if data.get("alias") else ""
            return f"published {data.get('model')} version {data.get('version')}{alias}"
        case "alias_not_moved":
            present = data.get("version")
            now = "was deleted" if present is None else f"points to version {present}"
            return f"alias {data.get('alias')} {now}: it was changed by hand after the job was submitted"
        case "job_failed":
            return f"job failed: {data.get('message')}"
        case _:
            return kind.replace("_", " ")


def _stage_started(data: Json) -> str:
    seconds = data.get("expected_seconds")
    return f"stage {data.get('stage')}" + ("" if seconds is None else f", about {max(1.0, seconds):.0f} s")


def _setting_chosen(data: Json) -> str:
    points = (f"; {name}: {point_text(point, ' ')}" for name, point in data["students"].items())
    return (
        f"setting chosen, the best of {data['tried']} candidates: teacher C {text(data['teacher_C'])}"
        + "".join(points)
    )


def _student_tuned(data: Json) -> str:
    point = f"{data['n_landmarks']} landmarks" if "n_landmarks" in data else point_text(data, " ")
    return (
        f"student {data.get('method')} of class {data.get('label')} is tuned: {point},"
        f" score {percent(data.get('score'))} %, the best of {data.get('points')} points"
    )


def _certificate(data: Json) -> str:
    return (
        f"objective {text(data.get('objective'))}, gap {text(data.get('gap'))},"
        f" {text(data.get('iterations'))} iterations, {text(data.get('seconds'))} s"
    )


def _chosen_features(features: Json) -> str:
    """The features of a job and why, if the job chose them."""
    if not features.get("reason"):
        return ""
    values = {name: value for name, value in features.items() if name != "reason"}
    return f"; features: {point_text(values)}. {features['reason']}"


def report_end(job: Json, *, quiet: bool = False) -> None:
    """Print how the job ended, unless ``quiet``. Raises CommandFailed if it did not succeed.

    Warnings of students go to standard error, ``quiet`` or not.
    """
    state = job["state"]
    for warning in job.get("warnings") or ():
        error_console().print(escape(f"Warning, class {warning['label']}: {warning['message']}"))
    if state in {"failed", "cancelled", "partially_succeeded"}:
        error = job.get("error") or {}
        reason = f": {error['message']}" if error.get("message") else ""
        raise CommandFailed(
            f"Job {job['id']} ended {state.replace('_', ' ')}{reason}.".replace("..", "."),
            [
                f"`stms jobs students {job['id']}` shows the trained students;",
                f"`stms jobs retry {job['id']}` resumes the job.",
            ],
        )
    if not quiet:
        version = (
            f", version {job['version']} of model {job['model']} is published" if job.get("version") else ""
        )
        console().print(f"Job {job['id']} succeeded{escape(version)}.")


_MEASURES = frozenset(
    {
        "score",
        "standard_error",
        "full_score",
        "met",
        "metric",
        "strategy",
        "folds",
        "points",
        "gap",
        "seconds",
    }
)
_EVENT = frozenset({"at", "label", "class_index", "method"})


def point_text(chosen: Mapping[str, Any], separator: str = ", ") -> str:
    """The hyper-parameters of a choice, without its measures and the fields of an event around it."""
    point = {name: value for name, value in chosen.items() if name not in _MEASURES | _EVENT}
    texts = {
        name: f"{value:.4g}" if isinstance(value, int | float) else str(value)
        for name, value in point.items()
    }
    return separator.join(f"{name} {text}" for name, text in texts.items())
