"""The product on the public files: uploads, jobs with default hyper-parameters, and answers to records."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from app.commands.job_progress import follow
from app.commands.remote import ServerProblem
from core.data.cell_values import NULLS
from lab.benchmarks.inputs.pipelines import number_of
from lab.benchmarks.inputs.sets import RawSet, Split, table_of
from stms_client import Client
from stms_client.calls import model_path, post

Json = dict[str, Any]
_AT_ONCE: Final = 500
_CLASSES_AT_ONCE: Final = 64
BUDGETS: Final = (0.01, 0.001)
_STANDARD_ERRORS: Final = 2.0


def upload(client: Client, path: Path, **said: Any) -> Json:
    """Store a file. Raises ServerProblem."""
    return cast(Json, client.upload_dataset(path, **said))


def train(client: Client, dataset: str, model: str, hyperparameters: Json) -> Json:
    """The ended job. Raises ServerProblem."""
    return follow(client, client.submit_job(dataset, model, hyperparameters).id, quiet=True)


def kinds_of(client: Client, dataset: str) -> dict[str, str]:
    """The kinds of the columns of a data set; all are numbers where it is one of numbers."""
    summary = client.dataset(dataset)["summary"]
    listed = summary.get("schema") or [{"name": one["name"], "kind": "number"} for one in summary["features"]]
    return {one["name"]: one["kind"] for one in listed}


def record_of(row: Sequence[str], names: Sequence[str], kinds: Mapping[str, str]) -> Json:
    """The record of a row of a file."""
    record: Json = {}
    for name, cell in zip(names, row, strict=True):
        kind, bare = kinds.get(name, "ignore"), cell.strip()
        if kind == "ignore":
            continue
        if bare in NULLS:
            record[name] = None
        elif kind == "number":
            record[name] = number_of(bare)
        elif kind == "boolean":
            record[name] = bare.lower() == "true"
        else:
            record[name] = cell if kind == "text" else bare
    return record


def accepted(client: Client, name: str, one: RawSet, folder: Path) -> str | None:
    """Why a file is none of the accepted ones; None if it became a model that answers a row of its own.

    The file is uploaded as it is, with its label column and what its set says.
    """
    path = folder / one.file
    with tempfile.TemporaryDirectory() as temporary:
        said = {"label_column": one.label, **one.said}
        if one.file.endswith(".label"):
            # No table: it is brought into one.
            names, rows = table_of(one, one.file, folder)
            path = Path(temporary) / "table.csv"
            Split(names, int(one.label), rows, []).write(path)
            said = {"label_column": names[int(one.label)]}
        try:
            dataset = upload(client, path, **said)["id"]
            small = {"features": {"kind": "linear"}, "automatic": False}
            job = train(client, dataset, f"{name}-raw".replace("_", "-"), small)
            if job["state"] != "succeeded":
                return f"the job {job['state']}: {job.get('error')}"
            names, rows = _named_rows(client, dataset, one, folder)
            kinds = kinds_of(client, dataset)
            body = {"record": record_of(rows[-1], names, kinds), "classes": [_class_of(rows[-1], names, one)]}
            client.do(post(f"{model_path(job['model'])}:query", body, dict[str, Any]))
        except ServerProblem as problem:
            return str(problem)
    return None


def _named_rows(
    client: Client, dataset: str, one: RawSet, folder: Path
) -> tuple[tuple[str, ...], list[list[str]]]:
    """The rows of the test part, or of the file, with the names that the data set gave to the columns."""
    names, rows = table_of(one, one.test or one.file, folder)
    known = [*kinds_of(client, dataset)]
    if len(known) == len(names) - 1:
        label = int(one.label) if one.names else names.index(one.label)
        names = (*known[:label], names[label], *known[label:])
    return names, rows


def _class_of(row: Sequence[str], names: Sequence[str], one: RawSet) -> str:
    place = int(one.label) if one.names else list(names).index(one.label)
    return row[place].strip()


def decisions(
    client: Client, model: str, classes: Sequence[str], records: Sequence[Json]
) -> NDArray[np.bool_]:
    """Which of the classes each record is taken for, (n, K), as the service answers."""
    blocks = [
        np.hstack([*_of_classes(client, model, classes, records[first : first + _AT_ONCE])])
        for first in range(0, len(records), _AT_ONCE)
    ]
    return np.vstack(blocks)


def _of_classes(
    client: Client, model: str, classes: Sequence[str], records: Sequence[Json]
) -> Iterator[NDArray[np.bool_]]:
    for first in range(0, len(classes), _CLASSES_AT_ONCE):
        some = classes[first : first + _CLASSES_AT_ONCE]
        body = {"classes": list(some), "records": list(records)}
        answer = client.do(post(f"{model_path(model)}:query", body, dict[str, Any]))
        yield np.array([[one["match"] for one in of["results"]] for of in answer["classes"]]).T


def measure(client: Client, name: str, split: Split, folder: Path) -> tuple[Json, Mapping[str, str]]:
    """Mean F over the classes in percent, and seconds, of a default job; and the kinds of the columns."""
    path = folder / f"{name}.csv"
    split.write(path)
    dataset = upload(client, path, label_column=split.names[split.label])["id"]
    started = time.monotonic()
    job = train(client, dataset, name.replace("_", "-"), {})
    seconds = time.monotonic() - started
    kinds = kinds_of(client, dataset)
    if job["state"] != "succeeded":
        return {"state": job["state"], "f1": None, "seconds": round(seconds, 1)}, kinds
    truth = np.array([row[split.label].strip() for row in split.test])
    classes = [*np.unique(truth)]
    records = [record_of(row, split.names, kinds) for row in split.test]
    matches = decisions(client, job["model"], classes, records)
    f1 = [f1_score(truth == label, matches[:, k], zero_division=0.0) for k, label in enumerate(classes)]
    figures = {"state": "succeeded", "f1": round(100 * float(np.mean(f1)), 2), "seconds": round(seconds, 1)}
    return figures, kinds


def promised(client: Client, name: str, split: Split, folder: Path) -> list[Json]:
    """Promised against actual rates of false positives on rows that were not learnt from.

    A promise is kept if the actual rate, pooled over the classes that it was given for, is at most the
    promised one plus two standard errors.
    """
    path = folder / f"{name}.csv"
    split.write(path)
    dataset = upload(client, path, label_column=split.names[split.label])["id"]
    kinds = kinds_of(client, dataset)
    truth = np.array([row[split.label].strip() for row in split.test])
    records = [record_of(row, split.names, kinds) for row in split.test]
    found = []
    for budget in BUDGETS:
        rule = {"threshold": {"rule": "fpr", "max_false_positive_rate": budget}}
        job = train(client, dataset, f"{name}-promise".replace("_", "-"), rule)
        students = client.pages(f"/v1/training-jobs/{job['id']}/students", limit=1000)
        given = [one["label"] for one in students if _has_promise(one)]
        classes = [label for label in dict.fromkeys(given) if (truth == label).any()]
        if not classes:
            continue
        # Servers may take a second to see that there is a newer version.
        matches = decisions(client, f"{job['model']}@{job['version']}", classes, records)
        negatives = sum(int((truth != label).sum()) for label in classes)
        false = sum(int((matches[:, k] & (truth != label)).sum()) for k, label in enumerate(classes))
        allowed = budget + _STANDARD_ERRORS * float(np.sqrt(budget * (1 - budget) / negatives))
        found.append(
            {
                "set": name,
                "promised": budget,
                "actual": round(false / negatives, 6),
                "negatives": negatives,
                "classes": len(classes),
                "kept": false / negatives <= allowed,
            }
        )
    return found


def _has_promise(student: Json) -> bool:
    """Whether a student was given a promise, for which its class has rows enough."""
    promise = student["metrics"].get("false_positives")
    return promise is not None and "warning" not in promise
