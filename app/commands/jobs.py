"""`stms jobs`: training jobs on a server."""

from __future__ import annotations

from typing import Annotated

import typer

from app.commands.following import describe_event, follow, job_path, report_end
from app.commands.http import DEFAULT_SERVER, KeyOption, ServerOption, connect
from app.commands.output import (
    Column,
    JsonOption,
    clock,
    field,
    moment,
    percent,
    print_fields,
    print_json,
    print_table,
    say,
)

commands = typer.Typer(no_args_is_help=True)

JobArgument = Annotated[str, typer.Argument(help="Id of the job, from `stms jobs list`.")]


@commands.command("list")
def list_(
    state: Annotated[
        str | None, typer.Option("--state", help="Only jobs in this state, e.g. running.")
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
) -> None:
    """All jobs, newest first."""
    with connect(server, api_key) as client:
        jobs = list(client.pages("/v1/training-jobs", status=state))
    if as_json:
        print_json(jobs)
        return
    print_table(
        [
            *map(field, ("id", "model", "state")),
            ("progress", lambda job: f"{job['progress']['done']}/{job['progress']['total']}"),
            moment("created_at", "created"),
            moment("finished_at", "finished"),
        ],
        jobs,
        empty="There are no jobs. Start one with `stms train DATASET --model NAME`.",
    )


@commands.command()
def show(
    job_id: JobArgument,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
) -> None:
    """One job: its state, times, hyper-parameters and what is needed to repeat it."""
    with connect(server, api_key) as client:
        job = client.get(job_path(job_id))
    if as_json:
        print_json(job)
        return
    times = {name: clock(job.get(f"{name}_at")) for name in ("created", "started", "finished")}
    error = job.get("error") or {}
    print_fields(
        {
            "id": job["id"],
            "data set": job["dataset_id"],
            "model": job["model"],
            "version": job.get("version"),
            "state": job["state"],
            "stage": job.get("stage"),
            "progress": f"{job['progress']['done']} of {job['progress']['total']}",
            **times,
            "estimated finish": clock(job.get("estimated_finish")),
            "error": error.get("message"),
            **{f"provenance {name}": value for name, value in (job.get("provenance") or {}).items()},
        }
    )


@commands.command()
def events(
    job_id: JobArgument,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
) -> None:
    """What happened to a job, as stored."""
    with connect(server, api_key) as client:
        stored = list(client.pages(f"{job_path(job_id)}/events"))
    if as_json:
        print_json(stored)
        return
    print_table(
        [
            field("id", "nr"),
            moment("at"),
            ("what", lambda event: describe_event(event["type"], event["data"]) or event["type"]),
        ],
        stored,
        empty="Nothing has happened yet.",
    )


@commands.command()
def students(
    job_id: JobArgument,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
) -> None:
    """The learners of a job: one row a class and method."""
    with connect(server, api_key) as client:
        rows = list(client.pages(f"{job_path(job_id)}/students"))
    if as_json:
        print_json(rows)
        return
    names = ("label", "method", "state", "objective", "gap", "iterations", "seconds")
    metrics = [_metric("accuracy", "accuracy %"), _metric("f1", "F %"), _metric("auc", "AUC %")]
    print_table([*map(field, names), *metrics], rows, empty="No student is trained yet.")


def _metric(name: str, title: str) -> Column:
    return title, lambda row: percent((row.get("metrics") or {}).get(name))


@commands.command()
def cancel(job_id: JobArgument, server: ServerOption = DEFAULT_SERVER, api_key: KeyOption = None) -> None:
    """Stop a job. What it has finished is kept, and a retry goes on from there."""
    with connect(server, api_key) as client:
        job = client.post(f"{job_path(job_id)}/cancel")
    say(f"Job {job_id} is {job['state']}.")


@commands.command()
def retry(job_id: JobArgument, server: ServerOption = DEFAULT_SERVER, api_key: KeyOption = None) -> None:
    """Put a failed, cancelled or partly successful job back in the queue; finished students stay."""
    with connect(server, api_key) as client:
        job = client.post(f"{job_path(job_id)}/retry")
    say(f"Job {job_id} is {job['state']}.")


@commands.command()
def wait(job_id: JobArgument, server: ServerOption = DEFAULT_SERVER, api_key: KeyOption = None) -> None:
    """Follow a job to its end; exit code 0 when it succeeded."""
    with connect(server, api_key) as client:
        report_end(follow(client, job_id))
