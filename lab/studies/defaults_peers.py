"""scikit-learn beside the jobs of ``lab.studies.defaults``, and the mixed public files as arrays for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from joblib import Parallel, cpu_count, delayed
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.svm import SVC, LinearSVC

from lab.benchmarks.inputs import sets
from lab.benchmarks.inputs.pipelines import frame, transformer

Json = dict[str, Any]
ONE_AGAINST_REST: Final = ("svc", "logistic")
_TREES: Final = 300
_MOST_BOOSTED: Final = 2e9
"""Boosting that would read more values is left out: rows × columns × classes × iterations."""
_ITERATIONS: Final = 100
_MOST_DENSE: Final = 2e7
"""Sparse rows of more values, with their zeros, are not made dense for boosting."""
_FEWEST: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Rows to learn from and rows to measure on, dense or CSR, with their classes."""

    X: Any
    y: Any
    X_test: Any
    y_test: Any

    @property
    def classes(self) -> list[Any]:
        """Those with rows to learn from and rows to measure on."""
        return [label for label in np.unique(self.y) if (self.y_test == label).any()]

    def write(self, path: Path) -> None:
        """As a file to upload."""
        arrays: Json = {"y_train": self.y, "y_test": self.y_test}
        for name, X in (("X_train", self.X), ("X_test", self.X_test)):
            if isinstance(X, np.ndarray):
                arrays[name] = X
            else:
                arrays |= {f"{name}_{part}": getattr(X, part) for part in ("data", "indices", "indptr")}
                arrays[f"{name}_shape"] = np.array(X.shape)
        np.savez(path, **arrays)


def figures(f1: Sequence[float], auc: Sequence[float], brier: Sequence[float], seconds: float) -> Json:
    """Means in percent. ``brier`` is null without any."""
    percent = {"f1": f1, "auc": auc, "brier": brier}
    means = {
        name: round(100 * float(np.mean(values)), 2) if values else None for name, values in percent.items()
    }
    return {**means, "seconds": round(seconds, 1)}


def peers(name: str, split: Split) -> dict[str, Json]:
    """Figures of every classifier; one that would take too long or too much memory is named and left out."""
    found = {kind: scikit_learn(kind, split) for kind in ONE_AGAINST_REST}
    for kind, make in _MULTICLASS.items():
        if kind == "boosting" and not _can_boost(split):
            print(f"{name}: boosting is left out, there is too much data for it", file=sys.stderr)
            continue
        found[kind] = _all_classes(make, split, dense=kind == "boosting")
    return found


def scikit_learn(kind: str, split: Split) -> Json:
    """Mean F, AUC and Brier score of one classifier of scikit-learn a class, and wall seconds for all."""
    started = time.monotonic()
    pool = Parallel(n_jobs=cpu_count(), prefer="threads")
    f1, auc, brier = zip(
        *pool(delayed(_one_class)(kind, split, label) for label in split.classes), strict=True
    )
    return figures(f1, auc, () if None in brier else brier, time.monotonic() - started)


def _one_class(kind: str, split: Split, label: Any) -> tuple[float, float, float | None]:
    """F, AUC and, of the logistic regression, Brier score of a class against the rest."""
    model: Any = (
        SVC(C=10, gamma="scale") if kind == "svc" else _scaled(LogisticRegression(max_iter=1000), split)
    )
    model.fit(split.X, split.y == label)
    scores, truth = model.decision_function(split.X_test), split.y_test == label
    brier = None if kind == "svc" else float(np.mean((model.predict_proba(split.X_test)[:, 1] - truth) ** 2))
    return f1_score(truth, scores > 0.0, zero_division=0.0), roc_auc_score(truth, scores), brier


def _scaled(model: Any, split: Split) -> Any:
    scaler = StandardScaler() if isinstance(split.X, np.ndarray) else MaxAbsScaler()
    return make_pipeline(scaler, model)


_MULTICLASS: Final[Mapping[str, Callable[[Split], Any]]] = {
    "linear_svc": lambda split: _scaled(LinearSVC(), split),
    "forest": lambda _: RandomForestClassifier(_TREES, n_jobs=-1, random_state=0),
    "extra_trees": lambda _: ExtraTreesClassifier(_TREES, n_jobs=-1, random_state=0),
    "boosting": lambda _: HistGradientBoostingClassifier(random_state=0),
}


def _can_boost(split: Split) -> bool:
    rows, columns = split.X.shape
    classes = len(np.unique(split.y))
    is_small = isinstance(split.X, np.ndarray) or rows * columns <= _MOST_DENSE
    return is_small and rows * columns * (classes if classes > 2 else 1) * _ITERATIONS <= _MOST_BOOSTED


def _all_classes(make: Callable[[Split], Any], split: Split, *, dense: bool) -> Json:
    """Means of one classifier of all classes; F is that of its answers."""
    if dense and sp.issparse(split.X):
        split = Split(split.X.toarray(), split.y, split.X_test.toarray(), split.y_test)
    started = time.monotonic()
    model = make(split).fit(split.X, split.y)
    answers = model.predict(split.X_test)
    has_probabilities = hasattr(model, "predict_proba")
    scores = (model.predict_proba if has_probabilities else model.decision_function)(split.X_test)
    if scores.ndim == 1:
        scores = np.column_stack([-scores, scores])
    seconds = time.monotonic() - started
    f1, auc, brier = [], [], []
    for label in split.classes:
        truth, score = split.y_test == label, scores[:, list(model.classes_).index(label)]
        f1.append(f1_score(truth, answers == label, zero_division=0.0))
        auc.append(roc_auc_score(truth, score))
        if has_probabilities:
            brier.append(float(np.mean((score - truth) ** 2)))
    return figures(f1, auc, brier, seconds)


def mixed_splits(name: str, folder: Path, rows: int | None, *, final: bool) -> list[sets.Split]:
    """Thirds of the training part of a public file, several of small ones; none without the file.

    final: the official test part, where there is one.
    """
    one = sets.TABLES[name]
    if not all((folder / file).is_file() for file in (one.file, one.test) if file):
        return []
    if final and one.test is None:
        return []
    return sets.splits(
        one if final else replace(one, test=None), folder, sys.maxsize if rows is None else rows
    )


def encoded(split: sets.Split, kinds: Mapping[str, str]) -> Split:
    """The cells as scikit-learn's pipelines see them: medians for gaps, one column a value, tf-idf of words.

    kinds: of the columns by name. Rows are dense unless there are texts.
    """
    encoder = transformer(split.names, kinds, "words" if "text" in kinds.values() else "")
    X, X_test = (
        transform(frame(part, split.names, kinds))
        for part, transform in ((split.train, encoder.fit_transform), (split.test, encoder.transform))
    )
    y, y_test = (np.array([row[split.label].strip() for row in part]) for part in (split.train, split.test))
    if sp.issparse(X) and "text" not in kinds.values():
        X, X_test = X.toarray(), X_test.toarray()
    return Split(X, y, X_test, y_test)
