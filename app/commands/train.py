"""`stms train`: train a model from a data set or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.commands.datasets import FormatOption, LabelOption, UnlabelledOption, send_file
from app.commands.hyperparameters import ParamsOption, SetOption, TuneOption, read_hyperparameters
from app.commands.job_progress import follow, report_end
from app.commands.output import JsonOption, error_console, print_json, say
from app.commands.remote import DEFAULT_SERVER, KeyOption, ServerOption, TenantOption, connect


def train(
    dataset: Annotated[str, typer.Argument(help="Id of a data set on the server, or a file to upload.")],
    model: Annotated[str, typer.Option("--model", help="Name of the model to publish.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the job to its end.")] = True,
    assignments: SetOption = [],  # noqa: B006
    params: ParamsOption = None,
    tune: TuneOption = False,
    priority: Annotated[
        str, typer.Option("--priority", help="low, normal or high; high needs an operator key.")
    ] = "normal",
    file_format: FormatOption = None,
    label_column: LabelOption = None,
    unlabelled: UnlabelledOption = None,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """Train a teacher and one student per class, and publish them as a version of a model.

    Features and C are chosen from the training rows, unless features, teacher, student, compact or tuning is
    given; --set automatic=false takes the defaults of `stms hyperparameters`.

    The exit code is 0 if the job succeeded, otherwise 1.

    Examples:

      stms train letters.csv --model letters --set evaluation.test_fraction=0.2

      stms train ds_0123 --model letters --set features.kind=nystroem --set student.C=1e5 --no-wait

      stms train ds_0123 --model letters --tune --set tuning.grid=open --set threshold.rule=f1
    """
    hyperparameters = read_hyperparameters(assignments, params, tune=tune)
    with connect(server, api_key, tenant) as client:
        dataset_id = dataset
        if Path(dataset).is_file():
            uploaded = send_file(
                client,
                Path(dataset),
                file_format=file_format,
                label_column=label_column,
                unlabelled=unlabelled,
            )
            dataset_id = uploaded["id"]
            error_console().print(
                f"Data set {dataset_id}: {uploaded['rows']} rows, {len(uploaded['classes'])} classes."
            )
        body = {"dataset_id": dataset_id, "model": model, "hyperparameters": hyperparameters}
        if priority != "normal":
            body["priority"] = priority
        job = client.post("/v1/training-jobs", body)
        if wait:
            error_console().print(f"Job {job['id']} is accepted.")
            job = follow(client, job["id"])
    if as_json:
        print_json(job)
    elif not wait:
        say(f"Job {job['id']} is accepted; follow it with `stms jobs wait {job['id']}`.")
    if wait:
        report_end(job, quiet=as_json)
