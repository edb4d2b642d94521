"""Data sets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

from stms_client import calls, cards
from stms_client.aio.connection import Connection
from stms_client.arrays import ClassName, Frame, Table, class_name
from stms_client.documents import (
    Dataset,
    DatasetClass,
    DatasetRow,
    ErasedSubject,
    ListedDataset,
    Upload,
)
from stms_client.errors import Problem
from stms_client.pictures import sendable
from stms_client.progress import upload_bar
from stms_client.transport import Progress, async_digest_of, file_size

_PAST_THE_API = 16 * 1024**2
"""Bytes from which on a file goes by way of the object store of the service, if it has one."""


class Datasets(Connection):
    """Upload, read and delete data sets."""

    async def upload_dataset(
        self,
        file: str | Path,
        *,
        name: str | None = None,
        file_format: str | None = None,
        label_column: str | int | None = None,
        unlabelled: str | None = None,
        header: str | None = None,
        separator: str | None = None,
        decimal: str | None = None,
        index_column: str | int | None = None,
        index_base: str | int | None = None,
        columns: Mapping[str, str] | None = None,
        null_values: Sequence[str] = (),
        skip_lines: int | None = None,
        column_names: Sequence[str] = (),
        encoding: str | None = None,
        rare_classes: str | None = None,
        subject_column: str | int | None = None,
        progress: Progress | bool | None = None,
    ) -> Dataset:
        """Upload a file as a data set. ``reading`` in the result says what was taken, and why.

        file: also a folder whose folders have the pictures of a class each, which is sent as one ZIP.

        label_column, index_column: name, or number counted from 0, negative from the end; an index column is
        left out, and ``"none"`` keeps all. header: ``"yes"`` or ``"no"``. separator: one character. decimal:
        ``"."`` or ``","``. index_base: first index of sparse rows, 0 or 1. unlabelled: ``"accept"`` keeps
        training rows whose label is missing, ``"drop"`` leaves them out, ``"refuse"`` refuses them; without
        it they are left out where they are at most 1 % of the rows. columns: kinds of columns by name, which
        are found otherwise: number, boolean, category, date, text, vector, image, ignore, ``date:`` and a
        pattern, or ``number:`` and a number such as $1,234.5. null_values: further tokens of missing values.
        skip_lines: lines above the table. column_names: of a file without a header. encoding: ``"latin-1"``
        or ``"windows-1252"``. rare_classes: ``"drop"`` leaves out the rows of classes that have a single one,
        ``"keep"`` keeps them, in a file to test on or to append, ``"refuse"`` refuses them; without it the
        same 1 % may be left out. subject_column: the column that tells whom a row is about; it is no feature,
        and rows keep a pseudonym, by which `erase_subject` finds them. progress: True for a bar in the
        terminal or notebook, or a function that is called with the bytes sent so far and in total.
        """
        reading = {
            "label_column": label_column,
            "header": header,
            "separator": separator,
            "decimal": decimal,
            "index_column": index_column,
            "index_base": index_base,
            "columns": calls.kinds(columns),
            "null_values": calls.listed(null_values),
            "skip_lines": skip_lines,
            "column_names": calls.listed(column_names),
            "encoding": encoding,
            "rare_classes": rare_classes,
            "unlabelled": unlabelled,
            "subject_column": subject_column,
        }
        with sendable(Path(file)) as sent:
            return await self._upload(sent, calls.upload(sent, name, file_format, reading), progress)

    async def _upload(
        self, file: Path, call: calls.Call[Dataset], progress: Progress | bool | None
    ) -> Dataset:
        """Send a file, by way of the object store if that is due."""
        with upload_bar(progress, call.file) as update:
            planned = None
            if file_size(file) >= _PAST_THE_API:
                planned = await self._put_in_store(file, update)
            if planned is not None:
                return await self.do(calls.of_planned(call, planned))
            try:
                return await self.do(call, update)
            except Problem as error:
                if error.code != "uploads_presigned":
                    raise
            # This service takes small files, too, from its object store only.
            planned = await self._put_in_store(file, update)
            return await self.do(calls.of_planned(call, str(planned)))

    async def plan_upload(self, size: int, sha256: str) -> Upload:
        """Plan to put a file into the object store of the service: ``PUT`` it to ``url`` of the result.

        `upload_dataset` does so by itself for large files. size: of the file in bytes. sha256: hexadecimal.
        Raises Conflict with the code ``no_object_store`` where there is none.
        """
        return await self.do(calls.plan_upload(size, sha256))

    async def _put_in_store(self, file: Path, progress: Progress | None) -> str | None:
        """Put a file into the object store of the service; returns its upload, None without a store."""
        try:
            upload = await self.plan_upload(file_size(file), await async_digest_of(file))
        except Problem as error:
            # An older service has no such path.
            if error.code == "no_object_store" or error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        await self._put_file(upload["url"], file, progress)
        return upload["id"]

    async def upload_table(
        self,
        table: Frame,
        *,
        label: str,
        name: str,
        columns: Mapping[str, str] | None = None,
        null_values: Sequence[str] = (),
        rare_classes: str | None = None,
        unlabelled: str | None = None,
    ) -> Dataset:
        """Upload a data frame of pandas or Polars, a table of Arrow, or a mapping of columns.

        It is sent as Parquet if pyarrow is installed and takes it, otherwise as JSON Lines; the index of a
        data frame of pandas is not sent. label: the column of the classes. The other arguments are those of
        `upload_dataset`. Raises InvalidInput for a table without this column, for infinite numbers and for
        durations, whose seconds can be sent as numbers.
        """
        reading = {
            "columns": calls.kinds(columns),
            "null_values": calls.listed(null_values),
            "rare_classes": rare_classes,
            "unlabelled": unlabelled,
        }
        return await self.do(calls.upload_table(table, label, name, reading))

    async def upload_rows(
        self,
        X: Table,
        y: Sequence[Any],
        *,
        name: str,
        test: tuple[Table, Sequence[Any]] | None = None,
        unlabelled: str | None = None,
    ) -> Dataset:
        """Upload rows and their labels as a data set. Needs NumPy.

        X: array or data frame (n, d), whose columns name the features. y: n labels. test: rows and labels of
        a test part; without it, jobs hold out rows of their own. unlabelled: ``"accept"`` keeps training rows
        whose label is None, NaN or masked. Raises InvalidInput for tables that are not numbers.
        """
        return await self.do(calls.upload_rows(X, y, name, test, unlabelled))

    async def fetch_dataset(
        self,
        url: str,
        *,
        sha256: str | None = None,
        name: str | None = None,
        filename: str | None = None,
        file_format: str | None = None,
        reading: Mapping[str, str] | None = None,
    ) -> Dataset:
        """Have the service fetch a data set from an address, such as a presigned one of a bucket.

        url: its origin is one that the service allows. sha256: that the file must have. filename: by default
        the last part of the address. reading: how it is read, by the names of the parameters over HTTP, such
        as ``{"label_column": "species"}``.
        """
        body = {"url": url, "sha256": sha256, "name": name, "filename": filename, "format": file_format}
        body = calls.without_none(body) | {"reading": dict(reading or {})}
        return await self.do(calls.post("/v1/datasets:fetch", body, Dataset, is_long=True))

    async def datasets(self) -> AsyncIterator[ListedDataset]:
        """All data sets, newest first, without their classes and summaries."""
        async for document in self._listed("/v1/datasets", ListedDataset):
            yield cast(ListedDataset, cards.Dataset(document))

    async def dataset(self, dataset_id: str) -> Dataset:
        """One data set."""
        return await self.do(calls.get(f"/v1/datasets/{calls.segment(dataset_id)}", Dataset))

    def dataset_classes(self, dataset_id: str) -> AsyncIterator[DatasetClass]:
        """All classes of a data set, in the order of their numbers."""
        return self._listed(f"/v1/datasets/{calls.segment(dataset_id)}/classes", DatasetClass, limit=1000)

    def dataset_rows(
        self, dataset_id: str, label: ClassName | None = None, *, part: str = "train", page: int = 100
    ) -> AsyncIterator[DatasetRow]:
        """Rows of a data set, each with ``id``, ``label`` and ``x``, in a form that queries take.

        label: of one class. part: ``"train"`` or ``"test"``. page: rows in one response.
        """
        filters: dict[str, str | float | None] = {
            "class": None if label is None else class_name(label),
            "part": part,
            "limit": page,
        }
        return self._listed(f"/v1/datasets/{calls.segment(dataset_id)}/rows", DatasetRow, **filters)

    async def revise_dataset(
        self,
        dataset_id: str,
        *,
        append: str | None = None,
        delete: Sequence[int] = (),
        delete_subjects: Sequence[str] = (),
        relabel: Mapping[int, str | None] | None = None,
        note: str | None = None,
    ) -> Dataset:
        """A new data set: this one with other labels, without some rows, followed by those of another one.

        dataset_id: ``"ds_…@latest"`` is the newest revision. append: id of a data set of the same columns;
        its training rows are taken, but for those that equal a row of this one. delete: numbers of training
        rows, as ``id`` of `dataset_rows` has them. delete_subjects: all rows about these. relabel: labels of
        training rows by number, None for no label; they come first. note: why. ``change`` in the result tells
        what changed. Raises Problem with the code ``wrong_columns``, ``unknown_row``, ``empty_change``, or
        another one.
        """
        body = calls.without_none({"append_dataset_id": append, "note": note})
        gone = {"rows": [int(row) for row in delete], "subjects": list(delete_subjects)}
        if any(gone.values()):
            body["delete"] = {name: some for name, some in gone.items() if some}
        if relabel:
            body["relabel"] = [{"row": int(row), "label": label} for row, label in relabel.items()]
        path = f"/v1/datasets/{calls.segment(dataset_id)}/revisions"
        return await self.do(calls.post(path, body, Dataset, is_long=True))

    async def erase_subject(self, subject: str) -> ErasedSubject:
        """Delete all rows about a subject in the data sets of all series, and its samples and feedback.

        ``versions`` in the result are those that were trained on such rows, and may contain some.
        """
        path = f"/v1/subjects/{calls.segment(subject)}"
        erased: ErasedSubject = await self.do(calls.Call("DELETE", path, calls.decoded, is_long=True))
        return erased

    async def delete_dataset(self, dataset_id: str) -> None:
        """Delete a data set that no unfinished job uses."""
        await self.do(calls.delete(f"/v1/datasets/{calls.segment(dataset_id)}"))
