"""F of default jobs on the public sets of texts: official test parts, else a stratified quarter (seed 0).

    python -m lab.studies.texts [--sets NAME …] [--threads N]

Teacher and students are fitted in this process as those of a job that names nothing. Sets are read from
$STMS_RAW or ../shared/raw; those without a file are left out. The last line is a JSON object with, by set,
classes, terms, rows, C/n, wall seconds, and mean F over the classes of teacher and students, in percent.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from core.data.column_kinds import infer_schema
from core.data.schema import Kind, KindSpec
from core.data.table import Table, TextCells
from core.encoding.labelled_table import LabelledTable
from core.run import Run
from core.training.config import (
    AUTOMATIC_CALIBRATION,
    AUTOMATIC_FOLDS,
    AUTOMATIC_STUDENT,
    AUTOMATIC_THRESHOLD,
    TrainingConfig,
)
from core.training.pipeline import train
from lab.benchmarks.inputs.sets import TEXTS, RawSet, table_of
from tests.system.data import raw_folder

Rows = tuple[list[str], list[str]]
_NO_TEXTS = ("", "index", "more")
DEFAULT = TrainingConfig(
    automatic=True,
    students=(AUTOMATIC_STUDENT,),
    threshold=AUTOMATIC_THRESHOLD,
    calibration=AUTOMATIC_CALIBRATION,
    folds=AUTOMATIC_FOLDS,
    guard="repair",
)


def labelled(one: RawSet, file: str) -> Rows:
    """Texts, the columns of a row joined, and labels; classes of a single row are left out."""
    names, rows = table_of(one, file, raw_folder())
    label = int(one.label) if one.names else names.index(one.label)
    texts = [k for k, name in enumerate(names) if k != label and name not in (*one.leaks, *_NO_TEXTS)]
    counts = Counter(row[label].strip() for row in rows)
    kept = [row for row in rows if counts[row[label].strip()] > 1]
    return [" ".join(row[k] for k in texts) for row in kept], [row[label].strip() for row in kept]


def table(rows: Rows, classes: Sequence[str]) -> LabelledTable:
    """Rows of one column of texts; those of other classes are left out."""
    code = {name: place for place, name in enumerate(classes)}
    kept = [(text, code[label]) for text, label in zip(*rows, strict=True) if label in code]
    cells = Table(("text",), (TextCells.of([text for text, _ in kept]),))
    schema = tuple(infer_schema(cells, {"text": KindSpec(Kind.TEXT)}))
    return LabelledTable(cells, schema, np.array([y for _, y in kept], dtype=np.int32), tuple(classes))


def parts(name: str) -> tuple[Rows, Rows]:
    """Rows to learn from, and rows to measure on."""
    one = TEXTS[name]
    texts, labels = labelled(one, one.file)
    if one.test is not None:
        return (texts, labels), labelled(one, one.test)
    split = train_test_split(texts, labels, test_size=0.25, stratify=labels, random_state=0)
    return (split[0], split[2]), (split[1], split[3])


def measure(name: str, threads: int) -> dict[str, Any]:
    """The figures of one set."""
    learnt, held_out = parts(name)
    classes = sorted(set(learnt[1]))
    rows, test = table(learnt, classes), table(held_out, classes)
    started = time.perf_counter()
    encoder = rows.encoder()
    data = rows.encoded(encoder)
    model = train(data, DEFAULT, test=test.encoded(encoder), run=Run(n_threads=threads))
    seconds = time.perf_counter() - started
    choice, measured = model.preparation.choice, model.evaluation
    assert choice is not None
    assert measured is not None
    figures = {method: round(100 * (measured.mean(method).f1 or 0.0), 2) for method in measured.methods}
    facts = {"rows": data.n, "classes": data.K, "terms": encoder.layout.terms}
    return {**facts, **choice.as_dict(), "seconds": round(seconds, 1), "f1": figures}


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0."""
    parser = argparse.ArgumentParser(description="F of default jobs on sets of texts.")
    parser.add_argument("--sets", nargs="+", choices=tuple(TEXTS), default=tuple(TEXTS))
    parser.add_argument("--threads", type=int, default=2)
    said = parser.parse_args(arguments)
    found = {}
    for name in said.sets:
        if (raw_folder() / TEXTS[name].file).is_file():
            found[name] = measure(name, said.threads)
            print(name, found[name]["f1"], f"{found[name]['seconds']} s", flush=True)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
