"""`stms train`: train a model from a data set or a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from app.commands.datasets import FormatOption, reading_fields, send_file
from app.commands.hyperparameters import ParamsOption, SetOption, TuneOption, read_hyperparameters
from app.commands.job_progress import follow, report_end
from app.commands.job_result import print_result
from app.commands.joined_files import one_file
from app.commands.output import CommandFailed, Json, JsonOption, error_console, notes, print_json, say
from app.commands.reading_options import UNSAID, Reading, takes_reading
from app.commands.remote import (
    DEFAULT_SERVER,
    AllowSchemaChange,
    KeyOption,
    ServerOption,
    ServerProblem,
    TenantOption,
    connect,
)
from app.domain.entities import AUTO, Priority
from app.domain.file_formats import in_words
from app.domain.names import MODEL_NAME, NAME_RULES, is_model_name
from app.domain.parameter_table import put
from stms_client import Client, Job

_DATASET_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

Dataset = Annotated[
    list[str],
    typer.Argument(
        metavar="DATASET...",
        help="Id of a data set on the server, or a file to upload; several files, or a folder of them, of"
        " one format with the same columns are one data set.",
    ),
]
TestOption = Annotated[
    str | None,
    typer.Option(
        "--test",
        metavar="FILE",
        help="File with the test part, read with the same options, or the id of a data set. Columns are"
        " matched by name. Classes that it writes in another way: --set 'evaluation.class_names={…}'.",
    ),
]
TestSkipLines = Annotated[
    int | None,
    typer.Option(
        "--test-skip-lines",
        min=0,
        help="Lines above the table of the test file.",
        show_default="those of --skip-lines",
    ),
]
NoTest = Annotated[
    bool,
    typer.Option(
        "--no-test",
        help="Hold out no rows: train on all of them. Without a test part nothing is measured then.",
    ),
]
LikeOption = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="MODEL[@ALIAS]",
        help="Version whose used columns and their kinds the job takes, or none: those of the file.",
        show_default="the one in production, otherwise the newest of the model",
    ),
]


@takes_reading()
def train(
    dataset: Dataset,
    model: Annotated[str, typer.Option("--model", help="Name of the model to publish.")],
    test: TestOption = None,
    test_skip_lines: TestSkipLines = None,
    no_test: NoTest = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the job to its end.")] = True,
    assignments: SetOption = [],  # noqa: B006
    params: ParamsOption = None,
    tune: TuneOption = False,
    like: LikeOption = None,
    allow_schema_change: AllowSchemaChange = False,
    priority: Annotated[
        str, typer.Option("--priority", help="low, normal or high; high needs an operator key.")
    ] = "normal",
    file_format: FormatOption = None,
    reading: Reading = UNSAID,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """Train a teacher and one student per class, and publish them as a version of a model.

    Features and C are chosen from the training rows, unless features, teacher, student, compact or tuning is
    given; --set automatic=false takes the defaults of `stms hyperparameters`. Where there is no test part, a
    fifth of the rows is held out to measure the students, which are published as they were measured.

    A new version of a model keeps the columns of the one in production and their kinds; what differs from the
    file alone is said as a warning. The alias stays where the new version refuses what the present one
    answers.

    The exit code is 0 if the job succeeded, otherwise 1.

    Examples:

      stms train adult.csv --label-column income --model adult

      stms train train.csv --test test.csv --model letters

      stms train parts/2025 parts/2026.parquet --model letters

      stms train ds_0123 --model letters --set features.kind=nystroem --set student.C=1e5 --no-wait

      stms train ds_0123 --model letters --tune --set tuning.grid=open --set threshold.rule=f1

      stms train more.csv --model letters --like letters@stable
    """
    hyperparameters = read_hyperparameters(assignments, params, tune=tune)
    _settle_test_part(hyperparameters, test, no_test)
    settled = {"like": like, "allow_schema_change": allow_schema_change or None}
    for name, value in settled.items():
        if value is not None:
            put(hyperparameters, name, value)
    _check_names(model, priority)
    _check_source(dataset)
    _check_source([] if test is None else [test])
    with connect(server, api_key, tenant) as client:
        uploaded = _uploaded(client, dataset, reading, file_format)
        dataset_id = dataset[0] if uploaded is None else uploaded["id"]
        if test is not None:
            own = {} if test_skip_lines is None else {"skip_lines": test_skip_lines}
            said = _with_label(client, reading, dataset_id, uploaded).but(**own)
            put(hyperparameters, "evaluation.dataset_id", _test_part(client, test, said, file_format))
        said_priority = None if priority == Priority.NORMAL else priority
        job = client.submit_job(dataset_id, model, hyperparameters, priority=said_priority)
        if wait:
            job = followed(client, job.id)
        print_job(client, job, wait, as_json)


def _settle_test_part(hyperparameters: Json, test: str | None, no_test: bool) -> None:
    """Put into hyper-parameters that no rows are held out. Raises BadParameter for two test parts."""
    fraction = hyperparameters.get("evaluation", {}).get("test_fraction")
    holds_out = fraction not in (None, AUTO)
    if test is not None and holds_out:
        raise typer.BadParameter("there is a test fraction, too; give one of them", param_hint="--test")
    if no_test:
        if test is not None or holds_out:
            raise typer.BadParameter("there is a test part, too; give one of them", param_hint="--no-test")
        put(hyperparameters, "evaluation.test_fraction", None)


def followed(client: Client, job_id: str) -> Job:
    """Show the progress of an accepted job until it ends."""
    error_console().print(f"Job {job_id} is accepted.")
    return follow(client, job_id)


def _check_names(model: str, priority: str) -> None:
    """Raise BadParameter for what the server would refuse after the upload."""
    if not is_model_name(model):
        raise typer.BadParameter(NAME_RULES[MODEL_NAME], param_hint="--model")
    if priority not in set(Priority):
        raise typer.BadParameter(f"it is {in_words(Priority)}", param_hint="--priority")


def _check_source(names: Sequence[str]) -> None:
    """Raise CommandFailed unless these are the id of a data set, or files or folders that exist."""
    for name in names:
        if not Path(name).exists() and (len(names) > 1 or not _DATASET_ID.fullmatch(name)):
            hint = " Without quotes the shell lists the files." if set(name) & set("*?[") else ""
            text = f"The file {name} does not exist, and this is not the id of a data set.{hint}"
            raise CommandFailed(text)


def _uploaded(
    client: Client, names: Sequence[str], reading: Reading, file_format: str | None
) -> Mapping[str, Any] | None:
    """The data set of some files; None if this is the id of one. Raises CommandFailed."""
    if not Path(names[0]).exists():
        return None
    with one_file([Path(name) for name in names], file_format, reading) as file:
        uploaded = send_file(client, file, reading, file_format=file_format)
    _report(uploaded)
    return uploaded


def _with_label(
    client: Client, reading: Reading, dataset_id: str, uploaded: Mapping[str, Any] | None
) -> Reading:
    """What is said of the training part, with its label column, which the test part has, too."""
    if reading.said["label_column"] is not None:
        return reading
    found = client.dataset(dataset_id) if uploaded is None else uploaded
    return reading.but(label_column=found["summary"].get("label_column"))


def _test_part(client: Client, file: str, reading: Reading, file_format: str | None) -> str:
    """The id of the data set to test on. Raises CommandFailed that says how to read it in another way."""
    try:
        # A class may have a single row here: it is not learned from this part.
        uploaded = _uploaded(client, [file], reading.but(rare_classes="keep"), file_format)
    except ServerProblem as error:
        remedy = (
            f"This is about the test part, {file}. --test-skip-lines says how many lines stand above its"
            " table. If it needs other options, upload it first"
            " (stms datasets upload FILE --rare-classes keep …) and say --test ID."
        )
        raise CommandFailed(error.message, [*error.details, remedy]) from error
    if uploaded is None:
        return file
    without = uploaded["summary"].get("unlabelled_rows", 0)
    if without:
        error_console().print(f"Rows of the test part without a label, which are left out: {without}.")
    return str(uploaded["id"])


def print_job(client: Client, job: Job, wait: bool, as_json: bool) -> None:
    """Print a job. wait: whether it has ended, which gives the exit code."""
    if as_json:
        print_json(job)
    elif not wait:
        say(f"Job {job['id']} is accepted; follow it with `stms jobs wait {job['id']}`.")
    if wait:
        report_end(job, quiet=as_json)
        if not as_json:
            print_result(client, job)


def _report(dataset: Mapping[str, Any]) -> None:
    """Print on standard error what was uploaded, how it was read, and its warnings."""
    err = error_console()
    err.print(f"Data set {dataset['id']}: {dataset['rows']} rows, {len(dataset['classes'])} classes.")
    for name, value in reading_fields(dataset).items():
        err.print(f"  {name}: {escape(value)}")
    for note in notes(dataset["summary"].get("warnings", [])):
        err.print(note)
