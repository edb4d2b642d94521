"""A new job for a model keeps the columns of its version in production, and says what differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.domain.entities import Job, Json
from app.domain.errors import InvalidRequest
from app.domain.ports import JobQueue
from app.domain.training_spec import TrainingSpec
from app.services import models
from app.services.training import submit_job
from app.settings import Settings
from app.store.unit_of_work import Store
from core.data.column_kinds import infer_schema
from core.data.schema import KindSpec
from core.data.table import Cells, NumberCells, Table, TextCells
from core.encoding.fit import fit_encoder
from tests.refusals import at_fault
from tests.system import stored_dataset
from tests.system.published import linear_student, linear_teacher, publish, publish_linear

N = 40
AGES = NumberCells(np.where(np.arange(N) % 4, np.arange(N) ** 2.0, np.nan))
IDS = NumberCells(np.arange(N) ** 2.0 + 0.5)
PRICES = TextCells.of("n.a." if i % 9 == 0 else f"${i}.50" for i in range(N))


class NoQueue(JobQueue):
    """Takes every job and runs none."""

    def enqueue(self, job_id: str, workflow_id: str) -> None: ...

    def cancel(self, workflow_id: str) -> None: ...

    def ping(self) -> None: ...


def release(store: Store, said: dict[str, str], alias: str | None = "latest", **columns: Cells) -> None:
    table = Table(tuple(columns), tuple(columns.values()))
    kinds = {name: KindSpec.parse(kind) for name, kind in said.items()}
    encoder = fit_encoder(table, infer_schema(table, kinds), ignored=["survived"])
    rows = np.ones((2, encoder.layout.columns))
    students = {label: linear_student(label, row) for label, row in zip("ab", rows, strict=True)}
    publish(store, "titanic", students, linear_teacher("ab", rows), encoder=encoder, alias=alias)


def submitted(store: Store, summary: Json, spec: Json | None = None, columns: int = 2) -> Job:
    with store.begin() as uow:
        dataset = stored_dataset.add_dataset(
            uow, ("a", "b"), rows=100, columns=columns, summary={"rows": 100, **summary}
        )
    job, _ = submit_job(
        store,
        NoQueue(),
        dataset_id=dataset.id,
        model="titanic",
        spec=TrainingSpec.model_validate(spec or {}),
        created_by="tests",
        idempotency_key=None,
        body_digest="",
        settings=Settings(),
    )
    return job


def schema(**kinds: str) -> Json:
    """The summary of a table without gaps. kinds: by the names of its columns, a pattern after a colon."""
    columns = []
    for name, text in kinds.items():
        kind, _, pattern = text.partition(":")
        columns.append({"name": name, "kind": kind, "gaps": 0, "distinct": 90, "nulls": {}})
        columns[-1] |= {"pattern": pattern} if pattern else {}
    return {"schema": columns}


def said(job: Job) -> dict[str, dict[str, Any]]:
    """What the job says of its columns."""
    columns = (job.spec["inputs"] or {"columns": {}})["columns"]
    return {
        name: {k: v for k, v in one.items() if v and v not in ("accept", "auto")}
        for name, one in columns.items()
    }


def test_the_first_job_of_a_model_takes_the_columns_as_they_are(store: Store):
    job = submitted(store, schema(PassengerId="number", Age="number"))
    assert (job.spec["like"], job.spec["inputs"], job.warnings) == (None, None, [])


def test_kinds_and_used_columns_are_those_of_the_version_in_production(store: Store):
    release(store, {"PassengerId": "ignore", "Fare": "number"}, PassengerId=IDS, Age=AGES, Fare=PRICES)
    summary = schema(PassengerId="number", Age="number", Fare="category", Cabin="category")
    job = submitted(store, summary, columns=4)
    assert job.spec["like"] == job.provenance["like"] == "titanic@1"
    assert said(job) == {
        "PassengerId": {"kind": "ignore"},
        "Fare": {"kind": "number:$1,234.5", "nulls": ["n.a."]},
        "Cabin": {"kind": "ignore"},
    }
    refusing = submitted(store, summary, {"inputs": {"on_missing": "refuse"}}, columns=4)
    missing = refusing.spec["inputs"]["columns"]["Age"]["missing"]
    assert missing == "accept", "rows without it were answered, and may be again"
    assert {warning["code"] for warning in job.warnings} == {"schema_change"}
    assert [warning["message"].partition("; ")[0] for warning in job.warnings] == [
        "Column 'PassengerId' is not used, as in version 1 of titanic",
        "Column 'Fare' is of kind number:$1,234.5, as in version 1 of titanic",
        "Column 'Cabin' is not used, as in version 1 of titanic",
    ]
    assert "by the data set alone it would be category. To train" in job.warnings[1]["message"]


def test_what_the_job_says_itself_holds(store: Store):
    release(store, {"PassengerId": "ignore"}, PassengerId=IDS, Age=AGES)
    own = {"inputs": {"columns": {"PassengerId": {"kind": "number"}, "Age": {"missing": "refuse"}}}}
    job = submitted(store, schema(PassengerId="number", Age="number"), own)
    columns = job.spec["inputs"]["columns"]
    assert columns["PassengerId"]["kind"] == "number"
    assert (columns["Age"]["kind"], columns["Age"]["missing"]) == (None, "refuse")
    assert job.warnings == []


def test_another_version_or_none_is_taken_where_that_is_said(store: Store):
    release(store, {"PassengerId": "ignore"}, PassengerId=IDS, Age=AGES)
    release(store, {}, alias=None, PassengerId=IDS, Age=AGES)
    summary = schema(PassengerId="number", Age="number")
    assert submitted(store, summary).spec["like"] == "titanic@2", "the newest one"
    models.point_alias(store, Settings(), "titanic", "production", 1)
    assert submitted(store, summary).spec["like"] == "titanic@1"
    by_alias = submitted(store, summary, {"like": "titanic@production"})
    assert said(by_alias)["PassengerId"] == {"kind": "ignore"}
    by_number = submitted(store, summary, {"like": "titanic@2"})
    assert (by_number.spec["like"], said(by_number)) == ("titanic@2", {})
    alone = submitted(store, summary, {"like": "none"})
    assert (alone.spec["like"], alone.spec["inputs"]) == ("none", None)
    for unknown in ("titanic@9", "titanic@absent", "ship"):
        with at_fault(InvalidRequest, "unknown_model", field="hyperparameters.like"):
            submitted(store, summary, {"like": unknown})


def test_columns_that_the_data_set_lacks_are_said(store: Store):
    release(store, {}, PassengerId=IDS, Age=AGES)
    job = submitted(store, schema(Age="number"), columns=1)
    assert "lacks columns of version 1 of titanic: 'PassengerId'" in job.warnings[0]["message"]
    other = submitted(store, schema(Petal="number"), columns=1)
    assert "has no column of version 1 of titanic" in other.warnings[0]["message"]
    assert other.spec["inputs"] is None


def test_rows_of_numbers_keep_what_could_be_missing(store: Store):
    release(store, {"PassengerId": "ignore"}, PassengerId=IDS, Age=AGES)
    job = submitted(store, {"features": [{"name": "PassengerId"}, {"name": "Age"}]})
    assert said(job) == {"PassengerId": {"kind": "ignore"}}
    whole = submitted(store, {"features": [{"name": "Age"}]}, columns=1)
    assert whole.spec["inputs"]["columns"]["Age"]["missing"] == "accept", "numbers alone refuse gaps"
    nameless = submitted(store, {"features": [{"name": None}, {"name": None}]})
    assert (nameless.spec["inputs"], nameless.warnings) == (None, [])


@pytest.mark.parametrize("names", [["Age", "PassengerId"], ["Age", "Fare"]])
def test_versions_of_numbers_keep_their_columns(store: Store, names: list[str]):
    inputs = {"columns": ["Age", "PassengerId"], "label_column": "survived"}
    publish_linear(store, "titanic", np.ones((2, 2)), inputs=inputs)
    job = submitted(store, {"features": [{"name": name} for name in names]})
    assert said(job) == ({} if "PassengerId" in names else {"Fare": {"kind": "ignore"}})
