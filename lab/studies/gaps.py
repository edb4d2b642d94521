"""Queries with gaps that training did not have: F beside scikit-learn, and promised rates of false positives.

    python -m lab.studies.gaps [--quick] [--sets NAME …] [--rows N] [--shares SHARE …]

Of each table three quarters of the rows are learnt from, and the last quarter is measured (stratified, seed
0), whole and with a random share of its cells taken away, five times. Beside the students of a job that
names nothing stands a pipeline of scikit-learn: medians and most frequent values in place of gaps, a column
for each category, and HistGradientBoosting. Students with threshold.rule fpr promise 5 % of false positives;
a promise is kept if the actual rate is at most two standard errors larger, of as many rows of other classes.

Sets are read from $STMS_RAW or ../shared/raw; those without a file are left out. ``--quick``: two of them.
``--rows``: at most so many rows of a set, 6000 unless given. The last line is a JSON object: ``f1_gain``, by
share of gaps the smallest difference of mean F to that of scikit-learn over the sets, in points; ``promises``
and how many are ``kept``, by share; and all figures ``by_set``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from app.ingest import dataset_format
from app.ingest.options import ReadingOptions
from app.ingest.orders import DatasetOrder
from app.ingest.reading import read_dataset
from core.data.table import NumberCells
from core.encoding.labelled_table import LabelledTable
from core.packed import PackedStudent
from core.packed.encoded_columns import CategoryColumn, NumberColumn
from core.packed.encoder import Encoder
from core.packed.record_rows import RecordRows, canonical, record_scorers
from core.run import Run
from core.training.config import TrainingConfig
from core.training.pipeline import prepare, train_student
from core.training.rehearsal import with_gaps
from lab.benchmarks.inputs.sets import TABLES, Split, table_of
from lab.studies.texts import DEFAULT
from tests.system.data import raw_folder

Json = dict[str, Any]
SETS: Final = ("titanic", "penguins", "crx", "car", "student", "telco", "adult")
_QUICK: Final = ("titanic", "penguins")
_SHARES: Final = (0.1, 0.3)
_BUDGET: Final = 0.05
_DRAWS: Final = 5


def rows_of(name: str, most: int) -> LabelledTable:
    """The rows of a set, read as an upload is."""
    one = TABLES[name]
    names, cells = table_of(one, one.file, raw_folder())
    label = int(one.label) if one.names else names.index(one.label)
    if len(cells) > most:
        cells = [cells[k] for k in np.sort(np.random.default_rng(0).permutation(len(cells))[:most])]
    with tempfile.TemporaryDirectory() as folder:
        file, rows = Path(folder) / "set.csv", Path(folder) / "rows"
        Split(names, label, cells, []).without(one.leaks).write(file)
        read_dataset(
            DatasetOrder(
                source=str(file),
                rows=str(rows),
                declared="csv",
                filename=file.name,
                max_rows=10**6,
                max_columns=10**4,
                max_bytes=10**9,
                temp_folder=folder,
                options=ReadingOptions.parse(label_column=names[label]),
            )
        )
        train, _ = dataset_format.decode(bytearray(rows.read_bytes()))
    return (train if isinstance(train, LabelledTable) else LabelledTable.of_numbers(train)).labelled()


def students_of(rows: LabelledTable, encoder: Encoder, config: TrainingConfig) -> dict[str, PackedStudent]:
    """The students of all classes, as a job trains them."""
    run = Run()
    made = prepare(rows.encoded(encoder), config, run)
    trained = (train_student(made, target, run=run) for target in range(len(rows.classes)))
    return {one.label: with_gaps(one, made, encoder, run).packed for one in trained}


def scores(
    student: PackedStudent, rows: LabelledTable, encoder: Encoder, gaps: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Scores (n,) of rows as queries with gaps have them. gaps: (n, columns of the encoder)."""
    records = RecordRows(encoder)
    score = record_scorers(student, records).one
    place = {name: k for k, name in enumerate(encoder.names)}
    found = []
    for row, record in enumerate(map(rows.table.record, range(rows.n))):
        values = [
            None if gaps[row, place[one.name]] else canonical(one, record[one.name])
            for one in records.columns
        ]
        # A record without any value is refused: that is no yes.
        found.append(-np.inf if all(value is None for value in values) else score(values))
    return np.array(found)


def pipeline_of(encoder: Encoder) -> Any:
    """A pipeline of scikit-learn for `matrix`."""
    numbers = [k for k, one in enumerate(encoder.columns) if isinstance(one, NumberColumn)]
    categories = [k for k, one in enumerate(encoder.columns) if isinstance(one, CategoryColumn)]
    columns = make_pipeline(
        SimpleImputer(strategy="most_frequent", missing_values=None),
        OneHotEncoder(handle_unknown="ignore", min_frequency=5, sparse_output=False),
    )
    parts = [("numbers", SimpleImputer(strategy="median"), numbers), ("categories", columns, categories)]
    return make_pipeline(ColumnTransformer(parts), HistGradientBoostingClassifier(random_state=0))


def matrix(rows: LabelledTable, encoder: Encoder, gaps: NDArray[np.bool_] | None = None) -> NDArray[Any]:
    """The raw cells of the columns that are used, (n, columns): NaN and None for gaps."""
    records = [rows.table.record(row) for row in range(rows.n)]
    columns = []
    for k, name in enumerate(encoder.names):
        missing = np.nan if isinstance(rows.table.column(name), NumberCells) else None
        gone = np.zeros(rows.n, dtype=bool) if gaps is None else gaps[:, k]
        cells = [
            missing if is_gone or record[name] is None else record[name]
            for record, is_gone in zip(records, gone, strict=True)
        ]
        columns.append(np.array(cells, dtype=object))
    return np.column_stack(columns)


def measure(name: str, most: int, shares: Sequence[float]) -> Json:
    """F of both, in percent, and promised rates, by share of gaps."""
    every = rows_of(name, most)
    learnt, measured = train_test_split(np.arange(every.n), test_size=0.25, stratify=every.y, random_state=0)
    train, test = every.take(np.sort(learnt)), every.take(np.sort(measured))
    encoder = train.encoder()
    usual = students_of(train, encoder, DEFAULT)
    promising = students_of(train, encoder, replace(DEFAULT, threshold="fpr", budget=_BUDGET))
    pipeline = pipeline_of(encoder).fit(matrix(train, encoder), train.y)
    figures: Json = {"rows": train.n, "classes": len(train.classes)}
    for share in (0.0, *shares):
        f1: dict[str, list[float]] = {"students": [], "scikit": []}
        rates: dict[str, list[float]] = {label: [] for label in promising}
        for draw in range(_DRAWS if share else 1):
            gaps = np.random.default_rng(draw).random((test.n, len(encoder.columns))) < share
            predicted = pipeline.predict(matrix(test, encoder, gaps))
            f1["scikit"].append(float(f1_score(test.y, predicted, average="macro")))
            of_classes = [
                f1_score(test.y == code, scores(usual[label], test, encoder, gaps) >= usual[label].threshold)
                for code, label in enumerate(train.classes)
            ]
            f1["students"].append(float(np.mean(of_classes)))
            for code, label in enumerate(train.classes):
                student = promising[label]
                yes = scores(student, test, encoder, gaps) >= student.threshold
                rates[label].append(float(yes[test.y != code].mean()))
        counts = {label: int((test.y != code).sum()) for code, label in enumerate(train.classes)}
        means = {label: float(np.mean(of_class)) for label, of_class in rates.items()}
        figures[f"{share:g}"] = {
            **{kind: round(100 * float(np.mean(values)), 2) for kind, values in f1.items()},
            "false_positives": {label: round(100 * rate, 2) for label, rate in means.items()},
            "kept": sum(
                bool(means[label] <= _BUDGET + 2 * np.sqrt(_BUDGET * (1 - _BUDGET) / counts[label]))
                for label in means
            ),
        }
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures of each set, and all of them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m lab.studies.gaps", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two sets")
    parser.add_argument("--sets", nargs="+", choices=SETS)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--shares", nargs="+", type=float, default=list(_SHARES))
    options = parser.parse_args(arguments)
    by_set: Json = {}
    for name in options.sets or (_QUICK if options.quick else SETS):
        if not (raw_folder() / TABLES[name].file).is_file():
            print(f"{name}: {raw_folder() / TABLES[name].file} is not there", flush=True)
            continue
        by_set[name] = measure(name, options.rows, options.shares)
        print(name, json.dumps(by_set[name]), flush=True)
    named = [f"{share:g}" for share in options.shares]
    summary = {
        "f1_gain": {
            share: min(
                (one[share]["students"] - one[share]["scikit"] for one in by_set.values()), default=None
            )
            for share in named
        },
        "promises": sum(one["classes"] for one in by_set.values()),
        "kept": {share: sum(one[share]["kept"] for one in by_set.values()) for share in named},
        "by_set": by_set,
    }
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
