"""scikit-learn on the same cells: imputation and one-hot columns or tf-idf, with SVC and linear models."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

from core.data.cell_values import NULLS
from lab.benchmarks.inputs.sets import Cells, Split

Json = dict[str, Any]
_MOST_ROWS_OF_KERNEL: Final = 12_000
_VECTORIZERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "words": {},
    "pairs": {"ngram_range": (1, 2), "sublinear_tf": True},
    "characters": {"analyzer": "char_wb", "ngram_range": (2, 4), "sublinear_tf": True},
}


def number_of(cell: str) -> float:
    """The number of a cell, NaN for a gap and for anything else."""
    try:
        return float(cell)
    except ValueError:
        return np.nan


def measure(split: Split, kinds: Mapping[str, str], *, is_text: bool) -> dict[str, Json]:
    """Mean F over the classes in percent, and seconds, of each pipeline. kinds: of the columns by name."""
    y, y_test = (np.array([row[split.label].strip() for row in part]) for part in (split.train, split.test))
    found: dict[str, Json] = {}
    for vectorizer in _VECTORIZERS if "text" in kinds.values() else ("",):
        encoder = transformer(split.names, kinds, vectorizer)
        started = time.monotonic()
        X, X_test = (
            transform(frame(part, split.names, kinds))
            for part, transform in (
                (split.train, encoder.fit_transform),
                (split.test, encoder.transform),
            )
        )
        prepared = time.monotonic() - started
        for name, model in _models(len(y), is_text=is_text).items():
            started = time.monotonic()
            predicted = model.fit(X, y).predict(X_test)
            seconds = prepared + time.monotonic() - started
            f1 = f1_score(y_test, predicted, average="macro", labels=np.unique(y_test), zero_division=0.0)
            title = f"{vectorizer} {name}".strip()
            found[title] = {"f1": round(100 * float(f1), 2), "seconds": round(seconds, 1)}
    return found


def _models(rows: int, *, is_text: bool) -> dict[str, Any]:
    models: dict[str, Any] = {
        "LinearSVC": LinearSVC(),
        "LogisticRegression": LogisticRegression(max_iter=1000),
    }
    if not is_text and rows <= _MOST_ROWS_OF_KERNEL:
        models["SVC"] = SVC(C=10)
    return models


def frame(rows: Sequence[Cells], names: Sequence[str], kinds: Mapping[str, str]) -> NDArray[Any]:
    """The cells of rows as an array of objects: numbers, None for gaps, texts."""
    table = np.empty((len(rows), len(names)), dtype=object)
    for column, name in enumerate(names):
        cells = [row[column].strip() for row in rows]
        kind = kinds.get(name)
        if kind in ("number", "boolean"):
            table[:, column] = [
                {"true": 1.0, "false": 0.0}.get(cell.lower(), number_of(cell)) for cell in cells
            ]
        elif kind == "category":
            table[:, column] = ["" if cell in NULLS else cell for cell in cells]
        else:
            table[:, column] = cells
    return table


def transformer(names: Sequence[str], kinds: Mapping[str, str], vectorizer: str) -> ColumnTransformer:
    """What makes columns of numbers of them. vectorizer: of texts, a key of ``_VECTORIZERS``."""
    places: dict[str, list[int]] = {"number": [], "category": [], "text": []}
    for column, name in enumerate(names):
        kind = kinds.get(name, "ignore")
        places.get("number" if kind == "boolean" else kind, []).append(column)
    parts: list[tuple[str, Any, Any]] = []
    if places["number"]:
        parts.append(
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), places["number"])
        )
    if places["category"]:
        parts.append(("categories", OneHotEncoder(handle_unknown="ignore"), places["category"]))
    parts += [
        (f"text {column}", TfidfVectorizer(**_VECTORIZERS[vectorizer]), column) for column in places["text"]
    ]
    return ColumnTransformer(parts)
