"""Several files, or those of a folder, as the one file of a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from app.commands.output import CommandFailed
from app.commands.reading_options import UNSAID, Reading
from app.domain.errors import ServiceError
from app.domain.file_formats import TRAITS, FileFormat, in_words
from app.domain.installation import require_training
from stms_client.pictures import is_folder_of_pictures, sendable

if TYPE_CHECKING:
    import pyarrow as pa

JOINED: Final = (FileFormat.CSV, FileFormat.JSONL, FileFormat.SVMLIGHT, FileFormat.PARQUET)
"""Formats of which several files can be one data set."""
_BLOCK_BYTES: Final = 1024**2


@contextmanager
def one_file(
    paths: Sequence[Path], file_format: str | None = None, reading: Reading = UNSAID
) -> Iterator[Path]:
    """The file to read or send: the one that is given, or a temporary one with the rows of all.

    file_format, reading: what is said of each of them. Files of a folder are taken in the order of
    their names; hidden ones and those whose names begin with an underscore are left out. Raises CommandFailed
    for what is no file, for files of several formats or of one that cannot be joined, and for other columns.
    """
    if len(paths) == 1 and is_folder_of_pictures(paths[0]):
        with sendable(paths[0]) as archive:
            yield archive
        return
    files = [file for path in paths for file in _files_of(path)]
    if len(files) == 1:
        yield files[0]
        return
    kind = _common_format(files, file_format)
    first = paths[0]
    stem = first.resolve().name if first.is_dir() else first.stem
    name = stem if len(paths) == 1 else f"{stem} and {len(paths) - 1} more"
    with TemporaryDirectory() as folder:
        joined = Path(folder) / f"{name}{TRAITS[kind].endings[0]}"
        if kind is FileFormat.PARQUET:
            _join_parquet(files, joined)
        else:
            has_names = kind is FileFormat.CSV and reading.said.get("header") != "no"
            _join_lines(files, joined, reading.said.get("skip_lines") or 0, has_names=has_names)
        yield joined


def _files_of(path: Path) -> list[Path]:
    """The file of a path, or the files of a folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        hint = " Without quotes the shell lists the files." if set(path.name) & set("*?[") else ""
        raise CommandFailed(f"The file {path} does not exist.{hint}")
    inside = sorted(one for one in path.iterdir() if not one.name.startswith((".", "_")))
    folders = [one.name for one in inside if one.is_dir()]
    if folders:
        text = f"The folder {path} has a folder, {folders[0]!r:.80}: name the folders or files to take."
        raise CommandFailed(text)
    if not inside:
        raise CommandFailed(f"The folder {path} has no files.")
    return inside


def _common_format(files: Sequence[Path], file_format: str | None) -> FileFormat:
    # Loads Arrow, which takes a while.
    from app.ingest.formats import detect

    kinds: dict[FileFormat, Path] = {}
    for file in files:
        try:
            kinds.setdefault(detect(file, declared=file_format, filename=file.name), file)
        except ServiceError as error:
            raise CommandFailed(f"{file}: {error.message}") from error
    if len(kinds) > 1:
        each = ", ".join(f"{file.name} is {TRAITS[kind].label}" for kind, file in kinds.items())
        raise CommandFailed(f"Files of one data set are of one format: {each}.")
    [kind] = kinds
    if kind not in JOINED:
        can = in_words([TRAITS[one].label for one in JOINED], "and")
        text = f"{TRAITS[kind].label} files are not joined, only {can}. Make one file of them."
        raise CommandFailed(text)
    return kind


def _join_lines(files: Sequence[Path], target: Path, skipped: int, *, has_names: bool) -> None:
    """Write the lines of all files, of further ones without those above the table and its names."""
    with target.open("wb") as output:
        names = b""
        for number, path in enumerate(files):
            with path.open("rb") as file:
                above = [file.readline() for _ in range(skipped)]
                header = file.readline() if has_names else b""
                if number == 0:
                    names = header
                    output.writelines([*above, header])
                elif _plain(header) != _plain(names):
                    raise _other_columns(path, files[0])
                _write_rest(file, output)


def _plain(header: bytes) -> bytes:
    return header.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")


def _write_rest(file: BinaryIO, output: BinaryIO) -> None:
    """Write what is left of a file; it ends with a line end."""
    last = b"\n"
    while block := file.read(_BLOCK_BYTES):
        output.write(block)
        last = block[-1:]
    if last != b"\n":
        output.write(b"\n")


def _other_columns(path: Path, first: Path) -> CommandFailed:
    return CommandFailed(
        f"Line 1 of {path} is not that of {first}: files of one data set have the same columns.",
        ["If they have no names of columns, say --header no."],
    )


def _join_parquet(files: Sequence[Path], target: Path) -> None:
    """Write the rows of all files under one schema: numbers of different types become the wider one."""
    require_training()
    import pyarrow as pa
    from pyarrow import parquet

    try:
        schemas = [_without_encodings(parquet.read_schema(file)) for file in files]
        first = set(schemas[0].names)
        for file, schema in zip(files, schemas, strict=True):
            missing, more = first - set(schema.names), set(schema.names) - first
            if missing or more:
                what = [f"lacks {name!r:.80}" for name in sorted(missing)]
                what += [f"has {name!r:.80} besides" for name in sorted(more)]
                raise CommandFailed(f"{file} has not the columns of {files[0]}: it {', '.join(what[:5])}.")
        common = pa.unify_schemas(schemas, promote_options="permissive")
        with parquet.ParquetWriter(target, common.with_metadata(schemas[0].metadata)) as writer:
            for file in files:
                for batch in parquet.ParquetFile(file).iter_batches():
                    table = pa.Table.from_batches([batch]).select(common.names)
                    writer.write_table(table.cast(common))
    except pa.ArrowException as error:
        raise CommandFailed(f"The Parquet files cannot be joined: {error}.") from error


def _without_encodings(schema: pa.Schema) -> pa.Schema:
    """The schema with plain texts where programs write dictionaries, views or large offsets."""
    import pyarrow as pa

    def plain(kind: Any) -> Any:
        if pa.types.is_dictionary(kind):
            return plain(kind.value_type)
        is_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        return pa.string() if is_text else kind

    fields = [field.with_type(plain(field.type)).with_nullable(True) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)
