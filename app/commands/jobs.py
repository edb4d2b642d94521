"""`stms jobs`: list, show, follow, cancel, retry and delete training jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from app.commands.job_progress import follow, report_end
from app.commands.job_result import print_result
from app.commands.labels import correct, labels
from app.commands.output import (
    Answer,
    Column,
    CommandFailed,
    Fields,
    Json,
    Since,
    Table,
    clock,
    field,
    listing,
    moment,
)
from app.commands.remote import JobArgument, RemoteServer, asks_server, job_path
from app.domain.event_text import describe_event, has_certificate, point_text, threshold_text
from app.domain.shown_figures import share
from stms_client import Curve

commands = typer.Typer(no_args_is_help=True)


@commands.command("list")
@asks_server()
def list_(
    client: RemoteServer,
    state: Annotated[
        str | None, typer.Option("--state", help="Only jobs in this state, e.g. running.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only jobs of this model.")] = None,
    created_by: Annotated[str | None, typer.Option("--by", help="Only jobs of this API key (id).")] = None,
    since: Since = None,
) -> Answer:
    """List all jobs, newest first; with --since those submitted from then on.

    Example:  stms jobs list --since 2h
    """
    filters = {"status": state, "model": model, "created_by": created_by, "since": since}
    return listing(
        client.pages("/v1/training-jobs", **filters),
        [
            *map(field, ("id", "model", "state")),
            ("progress", lambda job: f"{job['progress']['done']}/{job['progress']['total']}"),
            moment("created_at", "created"),
            moment("finished_at", "finished"),
        ],
        empty="There are no jobs. Start one with `stms train DATASET --model NAME`.",
    )


@commands.command()
@asks_server()
def counts(client: RemoteServer) -> Answer:
    """Show how many jobs are in each state."""
    found = client.get("/v1/training-jobs/counts")["counts"]
    return Answer(found, Fields({state.replace("_", " "): number for state, number in found.items()}))


@commands.command()
@asks_server()
def show(
    client: RemoteServer,
    job_id: JobArgument,
) -> Answer:
    """Show one job: its state, times and provenance."""
    job = client.get(job_path(job_id))
    times = {name: clock(job.get(f"{name}_at")) for name in ("created", "started", "finished")}
    error = job.get("error") or {}
    shown = Fields(
        {
            "id": job["id"],
            "data set": job["dataset_id"],
            "model": job["model"],
            "version": job.get("version"),
            "state": job["state"],
            "stage": job.get("stage"),
            "priority": job.get("priority"),
            "workers": ", ".join(job.get("workers") or ()) or None,
            "progress": f"{job['progress']['done']} of {job['progress']['total']}",
            **times,
            "estimated finish": clock(job.get("estimated_finish")),
            "error": error.get("message"),
            **{f"provenance {name}": value for name, value in (job.get("provenance") or {}).items()},
        }
    )
    return Answer(job, shown)


@commands.command()
@asks_server()
def events(
    client: RemoteServer,
    job_id: JobArgument,
) -> Answer:
    """List the stored events of a job."""
    return listing(
        client.pages(f"{job_path(job_id)}/events"),
        [
            field("id", "nr"),
            moment("at"),
            ("what", lambda event: describe_event(event["type"], event["data"]) or event["type"]),
        ],
        empty="There are no events yet.",
    )


@commands.command()
@asks_server()
def students(
    client: RemoteServer,
    job_id: JobArgument,
    sort: Annotated[
        str | None, typer.Option("--sort", help="For example f1 or failed; -f1 for the best first.")
    ] = None,
    label: Annotated[str | None, typer.Option("--label", help="Only classes whose label has this.")] = None,
) -> Answer:
    """List the students of a job: one row per class and method; sorted or searched, of the served method.

    A weak class has F or precision below one half, and more than chance explains.
    """
    rows = list(client.pages(f"{job_path(job_id)}/students", sort=sort, label=label))
    certificate = ("objective", "gap", "iterations") if any(map(has_certificate, rows)) else ()
    names = ("label", "method", "state", *certificate, "seconds")
    columns = [*map(field, names), *(_metric(*of) for of in _METRICS), field("threshold")]
    columns.append(("threshold rule", lambda row: threshold_text(row["metrics"])))
    if any("weak" in row["metrics"] for row in rows):
        columns.append(("", lambda row: "weak" if "weak" in row["metrics"] else None))
    if any(map(_chosen, rows)):
        columns += [("chosen", _chosen), ("score", _score)]
    if any("brier" in row["metrics"] for row in rows):
        columns.append(("Brier", lambda row: row["metrics"].get("brier")))
    return listing(rows, columns, empty="No student is trained yet.")


@commands.command()
@asks_server()
def confusion(
    client: RemoteServer,
    job_id: JobArgument,
    label: Annotated[
        str | None,
        typer.Argument(metavar="CLASS", help="Only the student of this class.", show_default="all"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Number of rows; 0: all.")] = 20,
) -> Answer:
    """List to which other classes' rows students say yes on the test part, most yes first.

    Example:  stms jobs confusion JOB 4
    """
    students = client.pages(f"{job_path(job_id)}/students", sort="class", label=label)
    rows = [
        {"student": row["label"], "class": one["label"], "yes": one["yes"], "rows": one["rows"]}
        for row in students
        if label is None or row["label"] == label
        for one in row["metrics"].get("yes_by_class", {}).get("classes", ())
    ]
    rows.sort(key=lambda row: -row["yes"])
    columns: list[Column] = [
        field("student", "student of"),
        field("yes", "says yes to"),
        field("rows", "of the rows"),
        field("class", "of class"),
        ("share", lambda row: share(row["yes"] / row["rows"])),
    ]
    return listing(
        rows[: limit or None],
        columns,
        empty="No student says yes to a row of another class, or there was no test part.",
    )


@commands.command()
@asks_server()
def trace(
    client: RemoteServer,
    job_id: JobArgument,
    label: Annotated[str, typer.Argument(metavar="CLASS", help="The student's class.")],
    method: Annotated[
        str | None,
        typer.Option("--method", help="One of the job's methods.", show_default="the one with a trace"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Number of points; 0: all.")] = 20,
) -> Answer:
    """Show the points of a student's hyper-parameter or size search, best first."""
    search = client.get(_trace_path(client, job_id, label, method))
    points = sorted(search["points"], key=_rank)
    hidden = len(points) - limit if limit else 0
    return Answer(
        search,
        Fields({"class": search["label"], "method": search["method"], **search["chosen"]}),
        Table([_point_column(name) for name in points[0]], points[: limit or None], empty="No points."),
        *([f"{hidden} more points; --limit 0 shows all."] if hidden > 0 else []),
    )


@commands.command()
@asks_server()
def curve(
    client: RemoteServer,
    job_id: JobArgument,
    label: Annotated[str, typer.Argument(metavar="CLASS", help="The student's class.")],
    method: Annotated[
        str | None, typer.Option("--method", help="One of the job's methods.", show_default="the served one")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Number of points; 0: all.")] = 20,
) -> Answer:
    """Show what a student would answer on the test part at other thresholds.

    `stms models publish` publishes a version with another threshold.
    """
    students = f"{job_path(job_id)}/students"
    rows = client.pages(students, method=method, label=label)
    student = next((row for row in rows if row["label"] == label), None)
    if student is None:
        raise CommandFailed(f"Job {job_id} has no trained student of class {label!r}.")
    document = client.get(f"{students}/{student['class_index']}/{student['method']}/curve")
    found = Curve.of(document, label, student["threshold"])
    step = max(1, len(found.thresholds) // limit) if limit else 1
    shown = Fields(
        {
            "class": label,
            "method": found.method,
            "rows of the class": found.positives,
            "other rows": found.negatives,
            "threshold": found.threshold,
        }
    )
    return Answer(document, shown, Table(_CURVE_COLUMNS, _points(found)[::step], empty="No points."))


def _points(curve: Curve) -> list[Json]:
    columns = {
        "threshold": curve.thresholds,
        "tp": curve.tp,
        "fp": curve.fp,
        "recall": curve.recall,
        "false-positive rate": curve.false_positive_rate,
        "precision": curve.precision,
        "F": curve.f1,
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _share(name: str) -> Column:
    return name, lambda point: share(point[name])


_CURVE_COLUMNS: Sequence[Column] = (
    *map(field, ("threshold", "tp", "fp")),
    *map(_share, ("recall", "false-positive rate", "precision", "F")),
)


def _trace_path(client: RemoteServer, job_id: str, label: str, method: str | None) -> str:
    """URL path of the trace of a class's student. Raises CommandFailed if there is no trace."""
    students = f"{job_path(job_id)}/students"
    of_class = [row for row in client.pages(students, method=method) if row["label"] == label]
    searched = [row for row in of_class if (row.get("chosen") or {}).get("points")]
    if not searched:
        student = f"class {label!r}" if method is None else f"student {method!r} of class {label!r}"
        reason = "has no class of that name" if not of_class else "did not search for its hyper-parameters"
        raise CommandFailed(f"There is no trace for {student}: job {job_id} {reason}.")
    return f"{students}/{searched[0]['class_index']}/{searched[0]['method']}/trace"


def _rank(point: Json) -> tuple[float, float]:
    """Sort key: points evaluated on more folds come first, because their scores are more precise."""
    return (-point["folds"], -point["score"]) if "score" in point else (0.0, -(point["f1"] or 0.0))


def _point_column(name: str) -> Column:
    shares = {"score": "score", "standard_error": "±", "f1": "F"}
    if name == "params":
        return name, lambda point: point_text(point[name])
    return (shares[name], lambda point: share(point[name])) if name in shares else field(name)


_METRICS = (("accuracy", "accuracy"), ("f1", "F"), ("auc", "AUC"))


def _chosen(row: Mapping[str, Any]) -> str | None:
    """The selected point, or size and cost of a compact student."""
    return point_text(row.get("chosen") or {}) or None


def _score(row: Mapping[str, Any]) -> str | None:
    """The cross-validated score of the selected point, with its standard error if known."""
    chosen = row.get("chosen") or {}
    if "score" not in chosen:
        return None
    error = f" ± {share(chosen['standard_error'])}" if "standard_error" in chosen else ""
    return share(chosen["score"]) + error


def _metric(name: str, title: str) -> Column:
    return title, lambda row: share((row.get("metrics") or {}).get(name))


@commands.command()
@asks_server()
def cancel(
    client: RemoteServer,
    job_id: JobArgument,
) -> str:
    """Cancel a job. Finished students are kept, and a retry resumes from there."""
    job = client.post(f"{job_path(job_id)}/cancel")
    return f"Job {job_id} is {job['state']}."


@commands.command()
@asks_server()
def delete(
    client: RemoteServer,
    job_id: JobArgument,
) -> str:
    """Delete an ended job without a published version, with its students and events."""
    client.delete(job_path(job_id))
    return f"Job {job_id} is deleted."


@commands.command()
@asks_server()
def retry(
    client: RemoteServer,
    job_id: JobArgument,
) -> str:
    """Queue a failed, cancelled or partially succeeded job again; finished students are kept."""
    job = client.post(f"{job_path(job_id)}/retry")
    return f"Job {job_id} is {job['state']}."


@commands.command()
@asks_server()
def wait(client: RemoteServer, job_id: JobArgument) -> None:
    """Follow a job to its end; exit code 0 if it succeeded."""
    job = follow(client, job_id)
    report_end(job)
    print_result(client, job)


commands.command()(labels)
commands.command()(correct)
