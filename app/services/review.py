"""Use cases of the review: what people look at next, and a data set of the rows whose class they said."""

from __future__ import annotations

import hashlib
import io
import json
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from app.domain.entities import Dataset, Json, ModelVersion
from app.domain.errors import Unprocessable
from app.domain.installation import require_training
from app.domain.monitors import Monitor
from app.domain.review import (
    MAX_DATASET_BYTES,
    MAX_DATASET_ROWS,
    Review,
    ReviewedRow,
    ReviewItem,
)
from app.ingest.orders import DatasetContent, DatasetOrder
from app.services.datasets import register_dataset
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.repositories.reviews import Candidate, CellSums
from app.store.unit_of_work import Store

_CANDIDATES: Final = 5000
"""The newest samples of which the next ones are chosen."""


def review(store: Store, model: str, alias: str, label: str | None, limit: int) -> Review:
    """The samples that people should look at next, those of most use for the rates first.

    label: of the only class. Within a cell of similar answers the order is by a hash of the id, which has
    nothing to do with the truth: so rates stay right wherever people stop. Raises NotFound, and OnlyServes
    without the packages that compute the order.
    """
    require_training()
    from core.monitoring.review import BINS

    with store.read() as uow:
        version = uow.models.alias(model, alias).version
        monitor = uow.monitors.get(model, alias)
        sums = uow.reviews.cells(monitor, label, BINS)
        candidates = uow.reviews.candidates(monitor, label, BINS, _CANDIDATES)
        ids = _in_order(sums, candidates, limit)
        shown = uow.reviews.shown(monitor, ids)
    items = [
        ReviewItem(sample, None if content is None else json.loads(content))
        for sample, content in (shown[name] for name in ids if name in shown)
    ]
    return Review(model, alias, version, sum(one.waiting for one in sums), items)


def _in_order(sums: Sequence[CellSums], candidates: Iterable[Candidate], limit: int) -> list[str]:
    """The ids of the samples to look at next."""
    from core.monitoring.review import Cell, review_order

    waiting: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for one in candidates:
        waiting[one.label, one.cell].append(one.id)
    for ids in waiting.values():
        ids.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    expected: defaultdict[str, float] = defaultdict(float)
    for row in sums:
        expected[row.label] += row.expected
    cells, left = list[Cell](), list[list[str]]()
    for row in sums:
        share = row.mass / max(expected[row.label], 1.0)
        ids = waiting.get((row.label, row.cell), [])
        cells.append(Cell(len(ids), row.answered, share, min(row.expected / row.mass, 1.0)))
        left.append(ids[::-1])
    return [left[number].pop() for number in review_order(cells, limit)]


def dataset_of_review(
    store: Store,
    files: BlobCache,
    model: str,
    alias: str,
    *,
    name: str | None,
    created_by: str,
    limits: Settings,
    read: Callable[[DatasetOrder], DatasetContent],
) -> tuple[Dataset, bool, dict[str, int]]:
    """A data set of the rows of samples of which people said the class; whether it is new; what is left out.

    The class of a row is the truth that somebody named, or the class whose yes was right, or whose no was
    wrong. Left out: ``class_unknown`` (of several classes, nobody said which), ``contradiction`` (of two
    samples of one row), ``other_form`` (rows that the columns of most others do not fit) and
    ``too_many``. read: as of `register_dataset`.

    Raises NotFound, Unprocessable without such a row, and as `register_dataset`.
    """
    require_training()
    with store.read() as uow:
        version = uow.models.version(model, uow.models.alias(model, alias).version)
        monitor = uow.monitors.get(model, alias)
    rows, left_out = _reviewed(store, monitor)
    content, filename, label_column, others = _file_of(version, rows)
    left_out["other_form"] = others
    left = {reason: number for reason, number in left_out.items() if number}
    if not rows or others == len(rows):
        text = (
            "There is no row to make a data set of: it needs samples whose rows were kept"
            ' ("store": "rows" of the monitor), with feedback that says their class.'
        )
        raise Unprocessable(text, code="no_reviewed_rows")
    with files.writing(f"stms-review-{secrets.token_hex(8)}.tmp") as file:
        file.write(content)
        said = {} if label_column is None else {"label_column": label_column}
        dataset, created = register_dataset(
            store,
            files,
            file,
            created_by=created_by,
            limits=limits,
            name=name or f"reviewed rows of {model}@{alias}"[:100],
            filename=filename,
            read=read,
            **said,
        )
    with store.begin() as uow:
        details = {"dataset": dataset.id, "rows": len(rows) - others, "left_out": left}
        uow.audit.append("review.dataset", f"{model}@{alias}", details=details)
    return dataset, created, left


def _reviewed(store: Store, monitor: Monitor) -> tuple[list[ReviewedRow], Counter[str]]:
    """The rows of which people said the class, oldest first, and how many were left out for which reason."""
    labels: dict[tuple[str, int], set[str]] = {}
    contents: dict[tuple[str, int], bytes] = {}
    left_out: Counter[str] = Counter()
    size = 0
    with store.read() as uow:
        for one in uow.reviews.labelled(monitor, 2 * MAX_DATASET_ROWS):
            key = one.request_id, one.row
            known = labels.setdefault(key, set())
            if one.truth is not None:
                known.add(one.truth)
            elif one.answer == one.correct:
                known.add(one.label)
            if key not in contents:
                size += len(one.content)
                if len(contents) >= MAX_DATASET_ROWS or size > MAX_DATASET_BYTES:
                    left_out["too_many"] += 1
                    labels.pop(key)
                    continue
                contents[key] = one.content
    rows = []
    for key, known in reversed(labels.items()):
        if len(known) == 1:
            rows.append(ReviewedRow(next(iter(known)), contents[key]))
        else:
            left_out["contradiction" if known else "class_unknown"] += 1
    return rows, left_out


def _file_of(version: ModelVersion, rows: Sequence[ReviewedRow]) -> tuple[bytes, str, str | None, int]:
    """A file of the rows, its name, the name of its label column, and how many rows do not fit in it.

    Rows with names are JSON lines, numbers without names .npz, and sparse rows svmlight.
    """
    names: Sequence[str] | None = version.inputs.get("columns")
    label_column = str(version.inputs.get("label_column") or "label")
    found: defaultdict[str, list[tuple[str, Any]]] = defaultdict(list)
    for row in rows:
        form, values = _read(json.loads(row.content), names)
        found[form].append((row.label, values))
    form = max(found, key=lambda one: len(found[one]), default="table")
    kept = found[form]
    others = len(rows) - len(kept)
    if form == "sparse":
        return _svmlight(version, kept), "reviewed.svmlight", None, others
    if form == "table":
        width = Counter(len(values) for _, values in kept).most_common(1)
        of_width = [one for one in kept if width and len(one[1]) == width[0][0]]
        return _npz(of_width), "reviewed.npz", None, len(rows) - len(of_width)
    lines = [json.dumps({**values, label_column: label}, ensure_ascii=False) for label, values in kept]
    return ("\n".join(lines) + "\n").encode(), "reviewed.jsonl", label_column, others


def _read(body: Json, names: Sequence[str] | None) -> tuple[str, Any]:
    """The form of a row, and its values."""
    if "record" in body:
        return "record", body["record"]
    if "text" in body:
        return "record", {(names or ["text"])[0]: body["text"]}
    x = body["x"]
    if isinstance(x, dict):
        return ("sparse", x) if "indices" in x else ("record", x)
    if names is not None and len(names) == len(x):
        return "record", dict(zip(names, x, strict=True))
    return "table", x


def _npz(rows: Sequence[tuple[str, Sequence[float]]]) -> bytes:
    buffer = io.BytesIO()
    X = np.array([values for _, values in rows], dtype=np.float64)
    np.savez_compressed(buffer, X=X, y=np.array([label for label, _ in rows]))
    return buffer.getvalue()


def _svmlight(version: ModelVersion, rows: Sequence[tuple[str, Json]]) -> bytes:
    first = int(version.inputs.get("index_base", 0))
    lines = []
    for label, row in rows:
        shift = first - int(row.get("index_base") or 0)
        pairs = sorted(zip(row["indices"], row["values"], strict=True))
        lines.append(" ".join([label, *(f"{index + shift}:{value!r}" for index, value in pairs)]))
    return ("\n".join(lines) + "\n").encode()
