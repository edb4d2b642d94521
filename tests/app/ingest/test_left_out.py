"""Rows without a label and classes of a single row: a few are left out with a warning, more are refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.domain.errors import InvalidRequest
from app.ingest.options import ReadingOptions
from app.ingest.orders import DatasetContent, DatasetOrder
from app.ingest.reading import read_dataset

ROWS = 200
FORMATS = ("csv", "csv of texts", "jsonl", "parquet")


def written(kind: str, labels: list[str | None]) -> bytes:
    """A table of two columns and a label, in one of `FORMATS`."""
    first: list[Any] = [f"value {k % 3}" if kind == "csv of texts" else 1.5 * k for k in range(len(labels))]
    second = [k % 7 for k in range(len(labels))]
    if kind.startswith("csv"):
        lines = (f"{a},{b},{label or ''}" for a, b, label in zip(first, second, labels, strict=True))
        return "\n".join(["a,b,label", *lines]).encode()
    if kind == "jsonl":
        rows = zip(first, second, labels, strict=True)
        return b"\n".join(msgspec.json.encode({"a": a, "b": b, "label": label}) for a, b, label in rows)
    output = io.BytesIO()
    pq.write_table(pa.table({"a": first, "b": second, "label": labels}), output)
    return output.getvalue()


def read(folder: Path, kind: str, labels: list[str | None], **said: str) -> DatasetContent:
    source = folder / "file"
    source.write_bytes(written(kind, labels))
    options = ReadingOptions.parse(label_column="label", **said)
    return read_dataset(
        DatasetOrder(
            source=str(source),
            rows=str(folder / "rows"),
            declared=kind.split()[0],
            filename=None,
            max_rows=10**6,
            max_columns=1000,
            max_bytes=10**9,
            temp_folder=str(folder),
            options=options,
        )
    )


def labels(missing: int = 0, single: int = 0) -> list[str | None]:
    """Of two classes, some of them missing, and some of classes of their own."""
    found: list[str | None] = ["yes" if k % 2 else "no" for k in range(ROWS)]
    found[:missing] = [None] * missing
    found[missing : missing + single] = [f"single {k}" for k in range(single)]
    return found


def warnings(content: DatasetContent) -> dict[str, str]:
    return {one["code"]: one["message"] for one in content.summary["warnings"]}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_few_are_left_out_with_a_warning(tmp_path: Path, kind: str):
    content = read(tmp_path, kind, labels(missing=2, single=1))
    assert (content.rows, content.classes) == (ROWS - 3, ("no", "yes"))
    found = warnings(content)
    assert found["unlabelled_left_out"].startswith("2 rows without a label are left out.")
    assert found["rare_classes_left_out"] == "1 rows of classes of a single row are left out: 'single 0'."
    assert {"unlabelled=drop", "rare_classes=drop"} <= set(content.variant)


def test_a_class_of_two_rows_stays_where_one_of_a_single_row_is_left_out(tmp_path: Path):
    content = read(tmp_path, "csv", [*labels(single=1), "pair", "pair"])
    assert (content.rows, content.classes) == (ROWS + 1, ("no", "pair", "yes"))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("counts", [{"missing": 3}, {"single": 3}])
def test_more_than_one_in_a_hundred_are_refused(tmp_path: Path, kind: str, counts: dict[str, int]):
    with pytest.raises(InvalidRequest):
        read(tmp_path, kind, labels(**counts))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("counts", "said"),
    [({"missing": 1}, {"unlabelled": "refuse"}), ({"single": 1}, {"rare_classes": "refuse"})],
)
def test_none_is_left_out_where_that_is_said(
    tmp_path: Path, kind: str, counts: dict[str, int], said: dict[str, str]
):
    with pytest.raises(InvalidRequest):
        read(tmp_path, kind, labels(**counts), **said)


@pytest.mark.parametrize("kind", FORMATS)
def test_any_number_is_left_out_where_that_is_said(tmp_path: Path, kind: str):
    content = read(tmp_path, kind, labels(missing=50, single=20), unlabelled="drop", rare_classes="drop")
    assert content.rows == ROWS - 70


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_without_a_label_are_kept_where_that_is_said(tmp_path: Path, kind: str):
    content = read(tmp_path, kind, labels(missing=2), unlabelled="accept")
    assert content.rows == ROWS
    assert "unlabelled_rows" in warnings(content)
    assert not content.variant
