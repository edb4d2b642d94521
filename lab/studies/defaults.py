"""Jobs with default hyper-parameters over HTTP, against six classifiers of scikit-learn.

    python -m lab.studies.defaults [--quick] [--minutes M] [--sets NAME …] [--rows N] [--default JSON]
                                   [--second JSON] [--store FILE] [--niceness N]

SVC(C=10, gamma="scale") and LogisticRegression are trained one class against the rest, LinearSVC,
RandomForest(300), ExtraTrees(300) and HistGradientBoosting on all classes. The linear ones see standardised
columns. Mixed tables are imputed and have a column for each value, and texts tf-idf. Of each set, two thirds
of the training part are learnt from and the last third is measured; of small sets thirds are drawn until 1000
rows are measured, ten times at most, of mixed ones three times, and figures are means.
FINAL=1 in the environment learns from the whole training part and measures the test part, once.
Sets are read from $STMS_DATA or ../shared/data, mixed ones from $STMS_RAW or ../shared/raw, and four are
scikit-learn's own. FINAL=1 leaves out those without a test part.

``--default``: hyper-parameters of the first job, ``{}`` unless given. ``--second``: those of a second job, a
single option that a user would try next. ``--rows``: at most so many rows of a set. ``--quick``: at most 3000
rows of the sets with at most 3000 columns. ``--minutes``: no further set is begun after so many. ``--store``:
a JSON file with the figures by set, written after each set; what it has already is not measured again, so
that a run that was ended can be continued. A run of ``--sets`` measures no compact students.
``--niceness``: of the solver, 0 unless given: with the 19 of a server it waits for all else that runs here,
as scikit-learn does not.

F, AUC and Brier score are means over the classes, in percent. The last line is a JSON object: ``sets``, the
number of those with an F of every job; ``worst_f1_vs_best`` and ``mean_f1_vs_best``, mean F of the first job
minus that of the best of the six; the same of ``auc``, and of ``brier`` with the sign turned, so that more is
better of all three; ``job_vs_forest_s``, the largest (seconds of a job − 20) / seconds of RandomForest;
``second_mean_f1_gain`` and ``second_worst_f1_gain``, mean F of the second job minus that of the first, null
without one; every figure by set; and apart from jobs, in this process:

compact_letter_s, compact_letter_f1   wall seconds and mean F of compact students of 100 landmarks, of all
                                      classes of letter after its teacher; null without the set
compact_wide_s                        the same seconds, 26 classes of 1040 x 617 random rows
sparse_vs_dense_served                time from the body to the answer of a sparse row of 8 stored values over
                                      that of a dense row of 64 values, by the same linear student
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from joblib import Parallel, cpu_count, delayed
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics import f1_score

from app.commands.datasets import send_file
from app.commands.job_progress import follow
from app.domain.entities import ModelVersion
from app.serving.query.evaluate import answer_class
from app.serving.query.negotiation import DEFAULT_FORMAT
from app.serving.query.requests import RequestLimits
from app.serving.servable import make_servable
from core.data.dataset import LabelledData
from core.features.spec import FeatureSpec
from core.packed import PackedStudent
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.compact import Compact
from core.training.config import TrainingConfig
from core.training.pipeline import prepare, train_student
from lab.benchmarks.inputs.jobs import kinds_of, upload
from lab.benchmarks.inputs.sets import TABLES
from lab.benchmarks.inputs.sets import Split as CellSplit
from lab.studies.compact import TASKS, WIDE
from lab.studies.defaults_peers import Split, encoded, figures, mixed_splits, peers
from stms_client import Client
from tests.system.data import data_folder, raw_folder, wide
from tests.system.deployment import job_service
from tests.system.published import linear_student

Json = dict[str, Any]
_QUICK = 3000
_ENOUGH, _MOST_DRAWS = 1000, 10
JOBS = ("default", "second")
_FREE_SECONDS = 20.0
_COLUMNS, _STORED, _QUERIES = 64, 8, 3000
BUILT_IN = {"iris": load_iris, "wine": load_wine, "breast_cancer": load_breast_cancer, "digits": load_digits}
SETS = (
    *BUILT_IN,
    *("vowel", "yeast", "segment", "satimage", "dna", "mfeat", "scene15", "cwru_lupi", "protein_val_part"),
    *("reuters_r8", "ohsumed23", "usps", "pendigits", "letter", "news20_bydate", "shuttle", "mnist"),
)


def read_part(arrays: Any, part: str) -> tuple[Any, Any]:
    """Rows and labels of the part ``"train"`` or ``"test"``."""
    name = f"X_{part}"
    if name in arrays:
        return arrays[name], arrays[f"y_{part}"]
    parts = tuple(arrays[f"{name}_{one}"] for one in ("data", "indices", "indptr"))
    return sp.csr_array(parts, shape=tuple(arrays[f"{name}_shape"])), arrays[f"y_{part}"]


def read(name: str, folder: Path, rows: int | None, *, final: bool, seed: int = 1) -> Split | None:
    """One set; None if there is no file, or no test part where it is asked for. seed: draws the thirds."""
    path = folder / f"{name}.npz"
    if name in BUILT_IN:
        if final:
            return None
        X, y = BUILT_IN[name](return_X_y=True)
    elif path.is_file():
        with np.load(path, allow_pickle=False) as arrays:
            X, y = read_part(arrays, "train")
            if final:
                return Split(X, y, *read_part(arrays, "test"))
    else:
        return None
    order = np.random.default_rng(seed).permutation(len(y))[:rows]
    learnt, measured = np.split(order, [2 * len(order) // 3])
    labels, counts = np.unique(y[learnt], return_counts=True)
    known = labels[counts >= 2]
    learnt, measured = (some[np.isin(y[some], known)] for some in (learnt, measured))
    return Split(X[learnt], y[learnt], X[measured], y[measured])


def repeated(name: str, folder: Path, rows: int | None, *, final: bool) -> list[Split]:
    """A set with its thirds drawn until `_ENOUGH` rows are measured; a test part is measured once."""
    first = read(name, folder, rows, final=final)
    if first is None:
        return []
    draws = 1 if final else min(_MOST_DRAWS, math.ceil(_ENOUGH / len(first.y_test)))
    others = (read(name, folder, rows, final=False, seed=seed) for seed in range(2, draws + 1))
    return [first, *(split for split in others if split is not None)]


def job(client: Client, dataset: str, name: str, hyperparameters: Json, classes: Sequence[str]) -> Json:
    """Train by a job and return the mean figures of its students of some classes."""
    started = time.monotonic()
    ended = follow(client, client.submit_job(dataset, name, hyperparameters).id, quiet=True)
    seconds = time.monotonic() - started
    rows = client.students(ended.id)
    measured = [row["metrics"] for row in rows if row["method"] != "teacher" and row["label"] in set(classes)]
    values = {
        score: [row[score] for row in measured if row.get(score) is not None]
        for score in ("f1", "auc", "brier")
    }
    result = figures(values["f1"], values["auc"], values["brier"], seconds)
    chosen = ended["provenance"].get("features")
    return {**result, "state": ended["state"], "warnings": len(ended["warnings"]), "features": chosen}


def measure(
    client: Client, name: str, draws: Sequence[Split], options: dict[str, Json], folder: Path
) -> dict[str, Json]:
    """Every method on one set, means over its draws."""
    found = [_measure_draw(client, name, split, options, folder) for split in draws]
    return {method: mean_of([one[method] for one in found]) for method in found[0]}


def mean_of(found: Sequence[Json]) -> Json:
    """Means of the figures of one method over its draws; the features are those of the first draw.

    A job's state is that of its first draw that did not succeed, its warnings are added up, and a figure that
    some draw does not have is null.
    """
    values = {name: [one[name] for one in found] for name in ("f1", "auc", "brier", "seconds")}
    means = {name: None if None in some else _rounded(np.mean, some) for name, some in values.items()}
    result = {**found[0], **means, "draws": len(found)}
    if "state" in result:
        states = [one["state"] for one in found]
        result["state"] = next((state for state in states if state != "succeeded"), "succeeded")
        result["warnings"] = sum(one["warnings"] for one in found)
    return result


def _measure_draw(
    client: Client, name: str, split: Split, options: dict[str, Json], folder: Path
) -> dict[str, Json]:
    """Every method on one draw."""
    path = folder / f"{name}.npz"
    split.write(path)
    dataset = send_file(client, path)["id"]
    classes = [str(label) for label in split.classes]
    found = peers(name, split)
    for option, hyperparameters in options.items():
        found[option] = job(client, dataset, name.replace("_", "-"), hyperparameters, classes)
    return found


def measure_mixed(
    client: Client, name: str, draws: Sequence[CellSplit], options: dict[str, Json], folder: Path
) -> dict[str, Json]:
    """Every method on one file of mixed columns, means over its draws."""
    found = [_measure_mixed_draw(client, name, split, options, folder) for split in draws]
    return {method: mean_of([one[method] for one in found]) for method in found[0]}


def _measure_mixed_draw(
    client: Client, name: str, split: CellSplit, options: dict[str, Json], folder: Path
) -> dict[str, Json]:
    label, train, test = split.names[split.label], folder / f"{name}.csv", folder / f"{name}-test.csv"
    split.write(train)
    replace(split, train=split.test).write(test)
    dataset = upload(client, train, label_column=label)["id"]
    measured = upload(client, test, label_column=label, rare_classes="keep")["id"]
    arrays = encoded(split, kinds_of(client, dataset))
    found = peers(name, arrays)
    for option, hyperparameters in options.items():
        said = {**hyperparameters, "evaluation": {"dataset_id": measured}}
        found[option] = job(client, dataset, name.replace("_", "-"), said, arrays.classes)
    return found


def compact_students(data: LabelledData, test: LabelledData, features: FeatureSpec) -> tuple[float, float]:
    """Wall seconds of compact students of all classes after the teacher, and their mean F in percent."""
    preparation = prepare(data, TrainingConfig(features=features))
    Compact().prepare(preparation.examples, Run())

    def train_one(target: int) -> PackedStudent:
        return train_student(preparation, target, Compact()).packed

    with one_blas_thread():
        train_student(preparation, 0, Compact(n_landmarks=2, steps=1))  # compiles the kernels
        started = time.monotonic()
        students = Parallel(n_jobs=cpu_count(), prefer="threads")(map(delayed(train_one), range(data.K)))
        seconds = time.monotonic() - started
    f1 = [
        f1_score(test.y == target, student.decide(test.X), zero_division=0.0)
        for target, student in enumerate(students)
    ]
    return round(seconds, 2), round(100 * float(np.mean(f1)), 2)


def sparse_vs_dense() -> float:
    """Median time of a query of a sparse row over that of a dense row, measured in turns."""
    row = np.random.default_rng(1).normal(size=_COLUMNS)
    columns = np.arange(0, _COLUMNS, _COLUMNS // _STORED)
    student = linear_student("a", np.random.default_rng(0).normal(size=_COLUMNS))
    servable = make_servable(
        student, ModelVersion("m", 1, None, None, "linear", ("a",), _COLUMNS, "", {}, 0.0)
    )
    bodies = [
        json.dumps({"x": x}).encode()
        for x in (row.tolist(), {"indices": columns.tolist(), "values": row[columns].tolist()})
    ]
    limits = RequestLimits(max_bytes=2**20, max_rows=1000)
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(_QUERIES):
        for body, some in zip(bodies, seconds, strict=True):
            started = time.perf_counter()
            answer_class(servable, body, DEFAULT_FORMAT, limits)
            some.append(time.perf_counter() - started)
    dense, sparse = (statistics.median(some) for some in seconds)
    return round(sparse / dense, 3)


def single_figures(folder: Path) -> Json:
    """What the last line has of compact students and sparse queries."""
    letter = read("letter", folder, None, final=os.environ.get("FINAL") == "1")
    seconds, f1 = None, None
    if letter is not None:
        data = LabelledData.from_arrays(letter.X, letter.y)
        test = LabelledData.with_codes(letter.X_test, letter.y_test, data.classes)
        seconds, f1 = compact_students(data, test, TASKS["letter"].features)
    return {
        "compact_letter_s": seconds,
        "compact_letter_f1": f1,
        "compact_wide_s": compact_students(*wide(), TASKS[WIDE].features)[0],
        "sparse_vs_dense_served": sparse_vs_dense(),
    }


def summary(found: dict[str, dict[str, Json]]) -> Json:
    """The content of the last line but for the figures by set; null where no set has the figures."""
    gains: dict[str, list[float]] = {"f1": [], "auc": [], "brier": []}
    second, over = [], []
    for name, one in found.items():
        jobs = [one[method] for method in JOBS if method in one]
        if any(measured["f1"] is None for measured in jobs):
            print(f"{name} is left out of the means: a job of it has no F", file=sys.stderr)
            continue
        others = [measured for method, measured in one.items() if method not in JOBS]
        for score, of_score in gains.items():
            sign = -1.0 if score == "brier" else 1.0
            best = [sign * other[score] for other in others if other.get(score) is not None]
            own = one["default"].get(score)
            if best and own is not None:
                of_score.append(sign * own - max(best))
        if "forest" in one:
            over.append((one["default"]["seconds"] - _FREE_SECONDS) / max(one["forest"]["seconds"], 0.1))
        if "second" in one:
            second.append(one["second"]["f1"] - one["default"]["f1"])
    return {
        "sets": len(gains["f1"]),
        **{f"worst_{score}_vs_best": _rounded(min, of_score) for score, of_score in gains.items()},
        **{f"mean_{score}_vs_best": _rounded(np.mean, of_score) for score, of_score in gains.items()},
        "job_vs_forest_s": _rounded(max, over),
        "second_mean_f1_gain": _rounded(np.mean, second),
        "second_worst_f1_gain": _rounded(min, second),
    }


def _rounded(statistic: Callable[[Sequence[float]], Any], values: Sequence[float]) -> float | None:
    return round(float(statistic(values)), 2) if values else None


def splits(
    names: Sequence[str], folder: Path, rows: int | None, columns: float = math.inf
) -> Iterator[tuple[str, list[Split]]]:
    """The sets that are there and have at most so many columns; the others are named on standard error."""
    for name in names:
        draws = repeated(name, folder, rows, final=os.environ.get("FINAL") == "1")
        if not draws:
            print(f"{name} is left out: there is no such part in {folder}", file=sys.stderr)
        elif draws[0].X.shape[1] > columns:
            print(f"{name} is left out: it has {draws[0].X.shape[1]} columns", file=sys.stderr)
        else:
            yield name, draws


def _measured(
    client: Client,
    given: argparse.Namespace,
    names: Sequence[str],
    options: dict[str, Json],
    folder: Path,
) -> Iterator[tuple[str, dict[str, Json]]]:
    """The figures of set after set, as long as there is time."""
    rows, columns = (_QUICK, _QUICK) if given.quick else (given.rows, math.inf)
    ends = time.monotonic() + 60.0 * given.minutes
    for name in names:
        if time.monotonic() > ends:
            print(f"{name} and what follows are left out: the time is over", file=sys.stderr)
            return
        if name not in TABLES:
            for _, draws in splits([name], given.data, rows, columns):
                yield name, measure(client, name, draws, options, folder)
            continue
        mixed = mixed_splits(name, given.raw, rows, final=os.environ.get("FINAL") == "1")
        if mixed:
            yield name, measure_mixed(client, name, mixed, options, folder)
        else:
            print(f"{name} is left out: there is no such part in {given.raw}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 when at least one set was measured."""
    parser = argparse.ArgumentParser(prog="python -m lab.studies.defaults", description=__doc__)
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--raw", type=Path, default=raw_folder())
    parser.add_argument("--sets", nargs="+", default=None)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--default", type=json.loads, default={})
    parser.add_argument("--second", type=json.loads, default=None)
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--niceness", type=int, default=0)
    given = parser.parse_args(arguments)
    options = {"default": given.default, **({} if given.second is None else {"second": given.second})}
    is_stored = given.store is not None and given.store.is_file()
    found: dict[str, dict[str, Json]] = json.loads(given.store.read_text()) if is_stored else {}
    names = [name for name in given.sets or (*SETS, *TABLES) if name not in found]
    with job_service(STMS_SOLVER_NICENESS=str(given.niceness)) as (client, folder):
        for name, measured in _measured(client, given, names, options, folder):
            found[name] = measured
            if given.store is not None:
                given.store.write_text(json.dumps(found), encoding="utf-8")
            shown = "  ".join(f"{kind} {one['f1']}" for kind, one in measured.items())
            seconds = ", ".join(f"{measured[option]['seconds']} s" for option in options)
            draws = measured["default"]["draws"]
            print(f"{name:18} F: {shown}  jobs: {seconds}  draws: {draws}", flush=True)
    if not found:
        return 1
    single = {} if given.sets else single_figures(given.data)
    print(json.dumps({**summary(found), **single, "by_set": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
