"""Follows a training job through its stored events, with a progress bar and an estimated finish."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from threading import Event, Thread
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from app.commands.output import CommandFailed, console, error_console
from app.domain.entities import BUSY_PROCESSOR, STARVES
from app.domain.event_text import describe_event, stage_text
from app.domain.shown_figures import duration
from stms_client import Client, Job

_RECONNECT_SECONDS = 60.0
_LINE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_POLL_SECONDS = 1.0


def follow(server: Client, job_id: str, *, quiet: bool = False) -> Job:
    """Show a job's progress until it ends; returns the job. Reconnects after a lost connection.

    quiet: show only the bar, without a line for each event. The bar is of the whole job.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    estimate = TextColumn("{task.fields[finish]}")
    with (
        Progress(*columns, estimate, console=error_console(), transient=True) as progress,
        _minute_lines(progress, quiet=quiet) as state,
        _moving_bar(progress, server, job_id),
    ):
        for event in server.follow_job(job_id, patience=_RECONNECT_SECONDS, pause=_PAUSE_SECONDS):
            line = describe_event(event.type, event.data)
            if line and not quiet:
                progress.console.print(escape(line))
            if event.type == "stage_started":
                state["stage"] = stage_text(str(event.data.get("stage")))
    return server.job(job_id)


@contextmanager
def _minute_lines(progress: Progress, *, quiet: bool) -> Iterator[dict[str, str]]:
    """Print the elapsed time and what the job does once a minute where no bar is drawn, as in a log.

    Yields a dictionary whose ``stage`` is what the job does.
    """
    state, ended, began = {"stage": "waiting"}, Event(), time.monotonic()

    def print_lines() -> None:
        while not ended.wait(_LINE_SECONDS):
            progress.console.print(f"{duration(time.monotonic() - began)}: {escape(state['stage'])}")

    thread = Thread(target=print_lines, daemon=True)
    if not quiet and not progress.console.is_terminal:
        thread.start()
    try:
        yield state
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()


@contextmanager
def _moving_bar(progress: Progress, server: Client, job_id: str) -> Iterator[None]:
    """Show once a second, where a bar is drawn, what the job does, which share is done, and its end."""
    task, ended = progress.add_task("waiting", total=1.0, finish=""), Event()

    def move() -> None:
        while not ended.wait(_POLL_SECONDS):
            # While the server is away the bar stays; the stream of events says so, or gives up.
            with suppress(CommandFailed):
                _update(progress, task, server.job(job_id))

    thread = Thread(target=move, daemon=True)
    if progress.console.is_terminal:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()


def _update(progress: Progress, task: TaskID, job: Job) -> None:
    doing = stage_text(job["stage"]) if job["state"] == "running" else job["state"]
    if any(warning["code"] == STARVES for warning in job["warnings"]):
        doing = f"waiting: {BUSY_PROCESSOR}"
    progress.update(
        task,
        description=escape(doing),
        completed=job["progress"]["share"],
        finish=f"finish about {_local_time(job['estimated_finish'])}" if job.get("estimated_finish") else "",
    )


def _local_time(moment: str) -> str:
    return datetime.fromisoformat(moment).astimezone().strftime("%H:%M:%S")


def report_end(job: Mapping[str, Any], *, quiet: bool = False) -> None:
    """Print how the job ended and what it chose, unless ``quiet``. Raises CommandFailed if it failed.

    Warnings go to standard error, ``quiet`` or not.
    """
    state = job["state"]
    for warning in job.get("warnings") or ():
        about = f", class {warning['label']}" if "label" in warning else ""
        error_console().print(escape(f"Warning{about}: {warning['message']}"))
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
        provenance = job.get("provenance") or {}
        if chosen := provenance.get("features", {}).get("reason"):
            console().print(escape(chosen))
        for choice in provenance.get("encoders", ()):
            console().print(escape(choice["reason"]))
