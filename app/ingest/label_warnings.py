"""Warnings about the labels of a data set, of numbers or of raw cells."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from app.ingest.left_out import left_out_rows
from app.ingest.raw import UNLABELLED_HINT, RawData, alike_labels, unlabelled_warning
from app.ingest.several_labels import several_labels_warning
from core.data.dataset import LabelledData
from core.data.labels import class_names
from core.encoding.labelled_table import LabelledTable

RARE = 10
"""Classes with fewer examples get a warning: figures on their held-out rows are hardly more than guesses."""

Data: TypeAlias = LabelledData | LabelledTable


def label_warnings(raw: RawData, train: Data) -> list[tuple[str, str]]:
    """Names of classes that look alike, mean the same or hold several, and classes that were left out."""
    return [
        *alike_labels(train.classes),
        *_spellings(raw),
        *several_labels_warning(train),
        *_left_out(raw, train),
    ]


def count_warnings(train: Data) -> list[tuple[str, str]]:
    """Classes of few rows, and rows without a label."""
    warnings = []
    rare = np.flatnonzero(train.class_counts < RARE)
    if len(rare) and train.n >= RARE * train.K:
        smallest = int(rare[np.argmin(train.class_counts[rare])])
        text = (
            f"{len(rare)} class{' has' if len(rare) == 1 else 'es have'} fewer than {RARE} examples,"
            f" the smallest, {train.classes[smallest]!r:.80}, {train.class_counts[smallest]}:"
            " what is measured of them is rough."
        )
        warnings.append(("rare_classes", text))
    if train.unlabelled:
        warnings.append(unlabelled_warning(train.unlabelled, has_classes=bool(train.K)))
    return warnings


def _left_out(raw: RawData, train: Data) -> list[tuple[str, str]]:
    missing, count = left_out_rows(raw.train.labels, train)
    warnings = []
    if missing:
        text = f"{missing} rows without a label are left out. {UNLABELLED_HINT}"
        warnings.append(("unlabelled_left_out", text))
    if not count:
        return warnings
    texts = sorted({str(label) for label in np.asarray(raw.train.labels, dtype=object) if label is not None})
    names = sorted({name for name in class_names(texts) if name} - set(train.classes))
    shown = ", ".join(f"{name!r:.80}" for name in names[:10]) + (", …" if len(names) > 10 else "")
    text = f"{count} rows of classes of a single row are left out: {shown}."
    return [*warnings, ("rare_classes_left_out", text)]


def _spellings(raw: RawData) -> list[tuple[str, str]]:
    """The warning that labels which are written differently are one class."""
    labels = raw.train.labels
    if raw.class_names is not None or not len(labels):
        return []
    array = np.asarray(labels) if not isinstance(labels, list) else labels
    texts = {
        str(text).strip()
        for text in set(array if isinstance(array, list) else array.tolist())
        if isinstance(text, str)
    }
    spelled: dict[str, list[str]] = {}
    listed = sorted(texts)
    for text, name in zip(listed, class_names(listed), strict=True):
        spelled.setdefault(name, []).append(text)
    merged = [(name, written) for name, written in spelled.items() if name and len(written) > 1]
    if not merged:
        return []
    shown = "; ".join(f"{', '.join(map(repr, written[:5]))} are {name!r:.80}" for name, written in merged[:5])
    return [
        ("labels_alike", f"Labels that are written differently and mean the same are one class: {shown}.")
    ]
