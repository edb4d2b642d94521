"""`stms train`: train a model from a data set or a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape

from app.commands.datasets import (
    BaseOption,
    ColumnOption,
    DecimalOption,
    EncodingOption,
    FormatOption,
    HeaderOption,
    IndexOption,
    LabelOption,
    NamesOption,
    NullOption,
    RareOption,
    SeparatorOption,
    SkipOption,
    UnlabelledOption,
    reading_fields,
    send_file,
)
from app.commands.hyperparameters import ParamsOption, SetOption, TuneOption, read_hyperparameters
from app.commands.inspection import kinds_of, names_of
from app.commands.job_progress import follow, report_end
from app.commands.output import CommandFailed, Json, JsonOption, error_console, print_json, say
from app.commands.remote import DEFAULT_SERVER, KeyOption, RemoteServer, ServerOption, TenantOption, connect

_DATASET_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


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
    header: HeaderOption = None,
    separator: SeparatorOption = None,
    decimal: DecimalOption = None,
    index_column: IndexOption = None,
    index_base: BaseOption = None,
    column: ColumnOption = [],  # noqa: B006
    null: NullOption = [],  # noqa: B006
    skip_lines: SkipOption = None,
    column_names: NamesOption = None,
    encoding: EncodingOption = None,
    rare_classes: RareOption = None,
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
                header=header,
                separator=separator,
                decimal=decimal,
                index_column=index_column,
                index_base=index_base,
                columns=kinds_of(column),
                null_values=null,
                skip_lines=skip_lines,
                column_names=names_of(column_names),
                encoding=encoding,
                rare_classes=rare_classes,
                unlabelled=unlabelled,
            )
            dataset_id = uploaded["id"]
            _report(uploaded)
        elif not _DATASET_ID.fullmatch(dataset):
            raise CommandFailed(f"The file {dataset} does not exist, and this is not the id of a data set.")
        job = _submitted(client, dataset_id, model, hyperparameters, priority)
        if wait:
            error_console().print(f"Job {job['id']} is accepted.")
            job = follow(client, job["id"])
    _print(job, wait, as_json)


def _submitted(
    client: RemoteServer, dataset_id: str, model: str, hyperparameters: Json, priority: str
) -> Json:
    body: Json = {"dataset_id": dataset_id, "model": model, "hyperparameters": hyperparameters}
    if priority != "normal":
        body["priority"] = priority
    job: Json = client.post("/v1/training-jobs", body)
    return job


def _print(job: Json, wait: bool, as_json: bool) -> None:
    """Print a job. wait: whether it has ended, which gives the exit code."""
    if as_json:
        print_json(job)
    elif not wait:
        say(f"Job {job['id']} is accepted; follow it with `stms jobs wait {job['id']}`.")
    if wait:
        report_end(job, quiet=as_json)


def _report(dataset: Json) -> None:
    """Print on standard error what was uploaded, how it was read, and its warnings."""
    err = error_console()
    err.print(f"Data set {dataset['id']}: {dataset['rows']} rows, {len(dataset['classes'])} classes.")
    for name, value in reading_fields(dataset).items():
        err.print(f"  {name}: {escape(value)}")
    for warning in dataset["summary"].get("warnings", []):
        err.print(f"[yellow]Note:[/] {escape(warning['message'])}")
