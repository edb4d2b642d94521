"""Following a training job through its stored events, with a progress bar and an estimated finish."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from app.commands.http import Server, ServerEvent, ServerProblem, segment
from app.commands.output import CommandFailed, Json, console, error_console, percent, text

ENDED = {"succeeded", "partially_succeeded", "failed", "cancelled"}
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_JOB_EVERY_SECONDS = 1.0


def job_path(job_id: str) -> str:
    """Where a job is on the server."""
    return f"/v1/training-jobs/{segment(job_id)}"


def follow(server: Server, job_id: str, *, quiet: bool = False) -> Json:
    """Show a job's progress until it ends; returns the job. A lost connection is taken up again.

    quiet: the bar only, without a line for each event.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    estimate = TextColumn("{task.fields[finish]}")
    with Progress(*columns, estimate, console=error_console(), transient=True) as progress:
        task = progress.add_task("waiting", total=None, finish="")
        seen_at = 0.0
        for event in _steady_events(server, job_id):
            line = describe_event(event.type, event.data)
            if line and not quiet:
                progress.console.print(escape(line))
            if time.monotonic() - seen_at >= _JOB_EVERY_SECONDS:
                _update(progress, task, server.get(job_path(job_id)))
                seen_at = time.monotonic()
    job: Json = server.get(job_path(job_id))
    return job


def _steady_events(server: Server, job_id: str) -> Iterator[ServerEvent]:
    """The job's events up to its end, over as many connections as it takes."""
    last_id, lost_at = "", None
    while True:
        try:
            for event in server.events(f"{job_path(job_id)}/events", last_id):
                last_id, lost_at = event.id or last_id, None
                yield event
            if server.get(job_path(job_id))["state"] in ENDED:
                return
        except CommandFailed as failure:
            lost_at = lost_at or time.monotonic()
            refused = isinstance(failure, ServerProblem) and failure.status not in {429, 502, 503, 504}
            if refused or time.monotonic() - lost_at > _PATIENCE_SECONDS:
                raise
        time.sleep(_PAUSE_SECONDS)


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
    """An event as one line; None for those that only move the bar."""
    match kind:
        case "stage_progress":
            return None
        case "stage_started":
            return f"stage {data.get('stage')}"
        case "teacher_finished":
            return f"teacher finished: {_certificate(data)}"
        case "student_finished":
            f1 = f", F {percent(data['f1'])} %" if data.get("f1") is not None else ""
            return f"student {data.get('method')} of class {data.get('label')}: {_certificate(data)}{f1}"
        case "student_failed":
            return f"student {data.get('method')} of class {data.get('label')} failed: {data.get('message')}"
        case "version_published":
            alias = f" as {data['alias']}" if data.get("alias") else ""
            return f"published {data.get('model')} version {data.get('version')}{alias}"
        case "job_failed":
            return f"job failed: {data.get('message')}"
        case _:
            return kind.replace("_", " ")


def _certificate(data: Json) -> str:
    return (
        f"objective {text(data.get('objective'))}, gap {text(data.get('gap'))},"
        f" {text(data.get('iterations'))} iterations, {text(data.get('seconds'))} s"
    )


def report_end(job: Json, *, quiet: bool = False) -> None:
    """One line about how the job ended, none if quiet. Raises CommandFailed unless it succeeded."""
    state = job["state"]
    if state in {"failed", "cancelled", "partially_succeeded"}:
        error = job.get("error") or {}
        reason = f": {error['message']}" if error.get("message") else ""
        raise CommandFailed(
            f"Job {job['id']} ended {state.replace('_', ' ')}{reason}.".replace("..", "."),
            [
                f"`stms jobs students {job['id']}` shows what was trained,",
                f"`stms jobs retry {job['id']}` goes on from there.",
            ],
        )
    if not quiet:
        version = (
            f", version {job['version']} of model {job['model']} is published" if job.get("version") else ""
        )
        console().print(f"Job {job['id']} succeeded{escape(version)}.")
