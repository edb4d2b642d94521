"""`stms jobs`: list, show, follow, cancel, retry and delete training jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from app.commands.job_progress import follow, report_end
from app.commands.job_result import print_result
from app.commands.labels import correct, labels, suspects
from app.commands.methods import made
from app.commands.output import (
    Answer,
    Column,
    CommandFailed,
    Fields,
    Json,
    Table,
    clock,
    field,
    listing,
    moment,
)
from app.commands.remote import JobArgument, asks_server
from app.domain.event_text import describe_event, has_certificate, point_text, threshold_text
from app.domain.shown_figures import share
from stms_client import Client, Curve
from stms_client.documents import Student

commands = typer.Typer(no_args_is_help=True)


def _facts(job: Mapping[str, Any]) -> Mapping[str, object]:
    error = job.get("error") or {}
    return {
        "id": job["id"],
        "data set": job["dataset_id"],
        "model": job["model"],
        "version": job.get("version"),
        "state": job["state"],
        "stage": job.get("stage"),
        "priority": job.get("priority"),
        "workers": ", ".join(job.get("workers") or ()) or None,
        "progress": f"{job['progress']['done']} of {job['progress']['total']}",
        **{name: clock(job.get(f"{name}_at")) for name in ("created", "started", "finished")},
        "estimated finish": clock(job.get("estimated_finish")),
        "error": error.get("message"),
        **{f"provenance {name}": value for name, value in (job.get("provenance") or {}).items()},
    }


commands.command("list")(
    made(
        Client.jobs,
        example="stms jobs list --since 2h",
        columns=[
            *map(field, ("id", "model", "state")),
            ("progress", lambda job: f"{job['progress']['done']}/{job['progress']['total']}"),
            moment("created_at", "created"),
            moment("finished_at", "finished"),
        ],
        empty="There are no jobs. Start one with `stms train DATASET --model NAME`.",
    )
)
commands.command("counts")(
    made(
        Client.job_counts,
        fields=lambda counts: {state.replace("_", " "): number for state, number in counts.items()},
    )
)
commands.command("show")(
    made(Client.job, about="Show one job: its state, times and provenance.", fields=_facts)
)
commands.command("events")(
    made(
        Client.job_events,
        columns=[
            field("id", "nr"),
            moment("at"),
            ("what", lambda event: describe_event(event["type"], event["data"]) or event["type"]),
        ],
        empty="There are no events yet.",
    )
)
commands.command("cancel")(
    made(
        Client.cancel_job,
        about="Cancel a job. Finished students are kept, and a retry resumes from there.",
        says="Job {job_id} is {answer[state]}.",
    )
)
commands.command("retry")(
    made(
        Client.retry_job,
        about="Queue a failed, cancelled or partially succeeded job again; finished students are kept.",
        says="Job {job_id} is {answer[state]}.",
    )
)
commands.command("delete")(made(Client.delete_job, says="Job {job_id} is deleted."))


@commands.command()
@asks_server()
def students(
    client: Client,
    job_id: JobArgument,
    sort: Annotated[
        str | None, typer.Option("--sort", help="For example f1 or failed; -f1 for the best first.")
    ] = None,
    label: Annotated[str | None, typer.Option("--label", help="Only classes whose label has this.")] = None,
) -> Answer:
    """List the students of a job: one row per class and method; sorted or searched, of the served method.

    A weak class has F or precision below one half, and more than chance explains.
    """
    rows = list(client.students(job_id, sort=sort, label=label))
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
    client: Client,
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
    students = client.students(job_id, sort="class", label=label)
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
    client: Client,
    job_id: JobArgument,
    label: Annotated[str, typer.Argument(metavar="CLASS", help="The student's class.")],
    method: Annotated[
        str | None,
        typer.Option("--method", help="One of the job's methods.", show_default="the one with a trace"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Number of points; 0: all.")] = 20,
) -> Answer:
    """Show the points of a student's hyper-parameter or size search, best first."""
    student = _searched(client, job_id, label, method)
    search = client.student_trace(job_id, student["class_index"], student["method"])
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
    client: Client,
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
    rows = client.students(job_id, method=method, label=label)
    student = next((row for row in rows if row["label"] == label), None)
    if student is None:
        raise CommandFailed(f"Job {job_id} has no trained student of class {label!r}.")
    document = client.student_curve(job_id, student["class_index"], student["method"])
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


def _searched(client: Client, job_id: str, label: str, method: str | None) -> Student:
    """The student of a class that has a trace. Raises CommandFailed if there is none."""
    of_class = [row for row in client.students(job_id, method=method) if row["label"] == label]
    searched = [row for row in of_class if (row.get("chosen") or {}).get("points")]
    if not searched:
        student = f"class {label!r}" if method is None else f"student {method!r} of class {label!r}"
        reason = "has no class of that name" if not of_class else "did not search for its hyper-parameters"
        raise CommandFailed(f"There is no trace for {student}: job {job_id} {reason}.")
    return searched[0]


def _rank(point: Mapping[str, Any]) -> tuple[float, float]:
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
def wait(client: Client, job_id: JobArgument) -> None:
    """Follow a job to its end; exit code 0 if it succeeded."""
    job = follow(client, job_id)
    report_end(job)
    print_result(client, job)


commands.command()(labels)
commands.command()(correct)
commands.command()(suspects)
