"""`stms datasets`: upload, list, show and delete data sets."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.commands.inspection import inspected, reading_parts, schema_and_notes
from app.commands.joined_files import JOINED, one_file
from app.commands.methods import made
from app.commands.output import (
    Answer,
    CommandFailed,
    Fields,
    Json,
    JsonOption,
    Part,
    clock,
    field,
    listing,
    moment,
    upload_progress,
)
from app.commands.reading_options import UNSAID, Reading, takes_reading
from app.commands.remote import asks_server
from app.domain.file_formats import LABELS, TRAITS, FileFormat, in_words
from app.domain.shown_figures import size
from stms_client import Client
from stms_client.documents import Dataset

_PAGE_ROWS: Final = 100
_SHOWN_VALUES: Final = 12

commands = typer.Typer(no_args_is_help=True)

FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        exists=True,
        readable=True,
        help=f"{in_words(LABELS)}; several files, or a folder of them, of one format with the same columns"
        f" ({in_words([TRAITS[kind].label for kind in JOINED])}) are one data set.",
    ),
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Name on the server.", show_default="the file's name")
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        help=f"{in_words(FileFormat)}.",
        show_default="from the file name",
    ),
]


@commands.command()
@takes_reading()
@asks_server()
def upload(
    client: Client,
    file: FilesArgument,
    name: NameOption = None,
    file_format: FormatOption = None,
    reading: Reading = UNSAID,
) -> Answer:
    """Upload a data set. Uploading the same file again returns the existing data set.

    How the file was read is printed, and each decision can be said by an option instead.

    Example:  stms datasets upload letters.csv --label-column letter
    """
    with one_file(file, file_format, reading) as whole:
        dataset = send_file(client, whole, reading, name=name, file_format=file_format)
    return Answer(dataset, *_shown(dataset))


@commands.command()
@takes_reading()
@asks_server()
def fetch(
    client: Client,
    url: Annotated[str, typer.Argument(help="Address of the file; the server allows its origin.")],
    sha256: Annotated[str | None, typer.Option("--sha256", help="SHA-256 that the file must have.")] = None,
    name: NameOption = None,
    file_format: FormatOption = None,
    reading: Reading = UNSAID,
) -> Answer:
    """Let the server fetch a data set from an address, such as a presigned one of a bucket.

    It is read as an upload is. Addresses with secrets are seen in the list of processes on this machine.

    Example:  stms datasets fetch "https://bucket.s3.amazonaws.com/letters.csv?X-Amz-…" --label-column letter
    """
    said = {key: value for key, value in reading.texts.items() if value is not None}
    dataset = client.fetch_dataset(url, sha256=sha256, name=name, file_format=file_format, reading=said)
    return Answer(dataset, *_shown(dataset))


@commands.command()
@takes_reading()
def inspect(
    file: FilesArgument,
    file_format: FormatOption = None,
    reading: Reading = UNSAID,
    as_json: JsonOption = False,
) -> None:
    """Read a file on this computer as an upload would be read, and show its columns. Nothing is sent.

    Example:  stms datasets inspect adult.csv --column education-num:category
    """
    with one_file(file, file_format, reading) as whole:
        content = inspected(whole, file_format, **reading.texts)
    Answer(content, *reading_parts(content)).print(as_json)


commands.command("list")(
    made(
        Client.datasets,
        columns=[
            *map(field, ("id", "name", "rows")),
            field("test_rows", "test rows"),
            field("columns"),
            field("class_count", "classes"),
            ("size", lambda row: size(row["size_bytes"])),
            moment("created_at", "created"),
        ],
        empty="There are no data sets. Upload one with `stms datasets upload FILE`.",
    )
)
commands.command("delete")(
    made(
        Client.delete_dataset,
        about="Delete a data set that no unfinished job uses. Models trained on it are kept.",
        says="Data set {dataset_id} is deleted.",
    )
)


DatasetArgument = Annotated[
    str, typer.Argument(metavar="DATASET", help="Id of the data set, from `stms datasets list`.")
]
NoteOption = Annotated[str | None, typer.Option("--note", help="Why, for the people who read it.")]


@commands.command()
@takes_reading()
@asks_server()
def append(
    client: Client,
    dataset_id: DatasetArgument,
    other: Annotated[
        str,
        typer.Argument(
            metavar="OTHER", help="Id of another data set of the same columns, or a file to upload as one."
        ),
    ],
    note: NoteOption = None,
    file_format: FormatOption = None,
    reading: Reading = UNSAID,
) -> Answer:
    """Make a data set of the rows of one, followed by the training rows of another one.

    Rows that the first one has already are left out. Its test part stays; that of the other one is not used.
    The options of an upload say how a file is read; classes may have a single row in it, and it may have a
    single class. DATASET@latest is the newest revision.

    Example:  stms datasets append ds_0123@latest more.csv --note "rows of March"
    """
    if Path(other).exists():
        if reading.said.get("rare_classes") is None:
            reading = reading.but(rare_classes="keep")
        other = send_file(client, Path(other), reading, file_format=file_format)["id"]
    return _revised(client.revise_dataset(dataset_id, append=other, note=note))


@commands.command("delete-rows")
@asks_server()
def delete_rows(
    client: Client,
    dataset_id: DatasetArgument,
    row: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[ROW...]", min=0, help="Numbers of training rows, as `stms datasets rows` shows them."
        ),
    ] = None,
    subject: Annotated[
        list[str] | None, typer.Option("--subject", help="All rows about this subject. Repeatable.")
    ] = None,
    note: NoteOption = None,
) -> Answer:
    """Make a data set without some rows of another one, which stays as it is.

    Example:  stms datasets delete-rows ds_0123 17 18
    """
    if not (row or subject):
        raise CommandFailed("Say which rows to delete, by their numbers or by --subject.")
    made = client.revise_dataset(dataset_id, delete=row or (), delete_subjects=subject or (), note=note)
    return _revised(made)


@commands.command()
@asks_server()
def relabel(
    client: Client,
    dataset_id: DatasetArgument,
    labels: Annotated[
        list[str], typer.Argument(metavar="ROW=LABEL...", help="Numbers of training rows, and their labels.")
    ],
    note: NoteOption = None,
) -> Answer:
    """Make a data set with other labels of some training rows of another one, which stays as it is.

    Nothing behind the = takes the label of a row away.

    Example:  stms datasets relabel ds_0123@latest 17=B 18=D
    """
    pairs = [one.partition("=") for one in labels]
    bad = next((one for one in pairs if not (one[0].isascii() and one[0].isdigit() and one[1])), None)
    if bad is not None:
        raise CommandFailed(f"{''.join(bad)!r:.80} is not ROW=LABEL, such as 17=B.")
    said = {int(number): label or None for number, _, label in pairs}
    return _revised(client.revise_dataset(dataset_id, relabel=said, note=note))


@commands.command("erase-subject")
@asks_server()
def erase_subject(
    client: Client, subject: Annotated[str, typer.Argument(help="As the column of subjects has it.")]
) -> Answer:
    """Delete all rows about a subject in the data sets of all series, and its samples and feedback.

    Each series gets a revision without them. Versions that were trained on such rows are named.

    Example:  stms datasets erase-subject "case 17"
    """
    erased = client.erase_subject(subject)
    texts = [
        f"{one['rows']} rows of {one['series']}: "
        + (f"revision {one['revision']} has none of them." if one["revision"] else "no revision was made.")
        + (f" {one['reason']}" if one["reason"] else "")
        + (f" Still in use, ask again later: {', '.join(one['in_use'])}." if one["in_use"] else "")
        for one in erased["datasets"]
    ]
    texts += [
        f"{one['model']}@{one['version']} was trained with {one['trained_with']} rows"
        + (f", and may contain some: {', '.join(one['contains'])}." if one["contains_rows"] else ".")
        for one in erased["versions"]
    ]
    texts.append(f"{erased['samples']} samples and {erased['feedback']} feedback were deleted.")
    return Answer(erased, "\n".join(texts))


def _revised(dataset: Dataset) -> Answer:
    change = dataset["change"]
    if change is None:
        raise RuntimeError("a revision has a change")
    text = (
        f"Data set {dataset['id']} is revision {dataset['revision']} of {dataset['series']}:"
        f" {change['added']} rows added, {change['deleted']} deleted, {change['relabelled']} relabelled,"
        f" {change['equal_rows_skipped']} equal ones left out; {dataset['rows']} rows to train."
    )
    return Answer(dataset, text)


@commands.command()
@asks_server()
def show(client: Client, dataset_id: str) -> Answer:
    """Show one data set: its classes, its columns and warnings."""
    dataset = client.dataset(dataset_id)
    return Answer(dataset, *_shown(dataset))


@commands.command()
@asks_server()
def rows(
    client: Client,
    dataset_id: str,
    label: Annotated[str | None, typer.Option("--class", help="Only rows of this class.")] = None,
    part: Annotated[str, typer.Option("--part", help="train or test.")] = "train",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Number of rows.")] = 20,
) -> Answer:
    """Show the first rows of a data set.

    Example:  stms datasets rows ds_0123 --class A --limit 5
    """
    listed = client.dataset_rows(dataset_id, label, part=part, page=min(limit, _PAGE_ROWS))
    return listing(
        islice(listed, limit),
        [("row", lambda row: row["id"]), ("class", lambda row: row["label"]), ("values", _values)],
        empty="There are no such rows.",
    )


def check_format(file_format: str | None) -> None:
    """Raise CommandFailed unless this is the name of a format."""
    if file_format is not None and file_format.lower() not in set(FileFormat):
        text = f"Format {file_format!r:.80} is not supported; use {in_words(FileFormat)}."
        raise CommandFailed(text)


def send_file(
    client: Client,
    file: Path,
    reading: Reading | None = None,
    *,
    name: str | None = None,
    file_format: str | None = None,
) -> Dataset:
    """Upload a file with a progress bar on standard error; returns the data set.

    Raises CommandFailed for a format or options that there are not, before anything is sent.
    """
    said = {} if reading is None else reading.for_upload
    check_format(file_format)
    with upload_progress(file) as progress:
        options: Json = {"name": name, "file_format": file_format, **said}
        return client.upload_dataset(file, progress=progress, **options)


def _shown(dataset: Mapping[str, Any]) -> list[Part]:
    summary = dataset.get("summary", {})
    counts = summary.get("class_counts") or {}
    fields = {
        "id": dataset["id"],
        "name": dataset["name"],
        "digest": dataset["digest"],
        "rows": f"{dataset['rows']} to train, {dataset['test_rows']} to test",
        "columns": dataset["columns"],
        "classes": [
            *(f"{label} ({counts[label]})" if label in counts else label for label in dataset["classes"]),
            *(["…"] if dataset["classes_truncated"] else []),
        ],
        "format, size": f"{dataset['source_format']}, {size(dataset['size_bytes'])}",
        "created": clock(dataset["created_at"]),
    }
    # An older service does not say it.
    if dataset.get("parent") is not None or dataset.get("latest", dataset["id"]) != dataset["id"]:
        fields["series"] = _series(dataset)
    return [Fields(fields | _extras(summary) | reading_fields(dataset)), *schema_and_notes(summary)]


def _series(dataset: Mapping[str, Any]) -> str:
    """Where the data set stands among its revisions."""
    parent, change = dataset["parent"], dataset["change"]
    made = f"revision {dataset['revision']} of {dataset['series']}"
    if change is not None:
        made += f", made of {parent}: {change['added']} rows added, {change['deleted']} deleted"
        made += "" if change["note"] is None else f" ({change['note']})"
    return made + f"; the newest is {dataset['latest'] if dataset['latest'] != dataset['id'] else 'this one'}"


def reading_fields(dataset: Mapping[str, Any]) -> dict[str, str]:
    """How the file of a data set was read: each decision with its reason."""
    return {
        decision["name"].replace("_", " "): f"{decision['value']} ({decision['reason']})"
        for decision in dataset.get("reading", [])
    }


def _values(row: Mapping[str, Any]) -> str:
    """The first values of a row; of a sparse one the stored values with their columns."""
    x = row["x"]
    if isinstance(x, dict) and set(x) != {"indices", "values", "index_base"}:
        shown = [f"{name}={value!r:.40}" for name, value in islice(x.items(), _SHOWN_VALUES)]
        return " ".join(shown) + (" …" if len(x) > _SHOWN_VALUES else "")
    is_dense = isinstance(x, list)
    values = x if is_dense else list(zip(x["indices"], x["values"], strict=True))
    texts = [f"{value:g}" if is_dense else f"{value[0]}:{value[1]:g}" for value in values[:_SHOWN_VALUES]]
    return " ".join(texts) + (" …" if len(values) > _SHOWN_VALUES else "")


def _extras(summary: Json) -> Json:
    """What the data set holds beside rows and labels, by its title; nothing of what is absent."""
    shown: Json = {}
    if summary.get("unlabelled_rows"):
        shown["without label"] = f"{summary['unlabelled_rows']} rows"
    if privileged := summary.get("privileged"):
        shown["privileged"] = privileged["names"] or f"{privileged['columns']} columns"
    if views := summary.get("views"):
        shown["views"] = [f"{view['name']} ({view['stop'] - view['start']} columns)" for view in views]
    if scores := summary.get("teacher_scores"):
        shown["teacher scores"] = f"right in {100 * scores['accuracy']:.1f} % of the rows"
    return shown
