"""Two versions beside each other: what differs, which classes have changed most, and both curves."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import sqlalchemy as sa

from app.domain.curves import RowAnswers, pack
from app.domain.entities import ModelVersion, StudentRow, StudentState
from app.services.version_metrics import StudentTotals
from app.store.repositories.comparisons import Pair
from app.store.tables import job_students, jobs, model_versions
from app.store.unit_of_work import Store
from app.web.charts import SIDE
from app.web.compare import scattered
from tests.app.api.conftest import publish_pets
from tests.app.students import change_student
from tests.app.web.conftest import Page, Person, Things

Enter = Callable[..., Person]
PATH = "/ui/models/pets/compare"


def section(text: str, title: str) -> str:
    """The text of the card with a title."""
    return next(part for part in text.split("<section")[1:] if f"<h2>{title}</h2>" in part)


def test_losers_and_winners_are_those_of_the_second_version(sign_in: Enter, things: Things) -> None:
    person = sign_in("train")
    text = person.get(f"{PATH}?a=1&b=2").text
    losers, winners = section(text, "Biggest losers"), section(text, "Biggest winners")
    assert 'title="cat"' in losers
    assert "-0.2000" in losers
    assert 'title="dog"' in winners
    assert "+0.1500" in winners
    assert "1 better, 1 worse, 0 equal; 1 only in 1, 1 only in 2" in text
    turned = person.get(f"{PATH}?a=2&b=1").text
    assert 'title="dog"' in section(turned, "Biggest losers")
    brier = person.get(f"{PATH}?a=1&b=2&metric=brier").text
    assert 'title="cat"' in section(brier, "Biggest losers"), "a larger Brier score is worse"
    assert person.get(f"{PATH}?a=1&b=2&metric=luck").status_code == 400
    assert person.get(f"{PATH}?a=1&b=9").status_code == 404
    assert "These are the same version" in person.get(f"{PATH}?a=1&b=1").text


def measured(store: Store, version: ModelVersion, digest: str, tp: int, fp: int) -> None:
    """Let each class of a version have been measured on 100 rows of it and 100 others, with every answer."""
    truth = np.repeat([True, False], 100)
    totals = StudentTotals(version.method)
    with store.begin() as uow:
        for number, label in enumerate(version.classes):
            yes = np.repeat([True, False, True, False], [tp, 100 - tp, fp, 100 - fp])
            metrics = {"tp": tp, "fp": fp, "fn": 100 - tp, "tn": 100 - fp, "f1": 2 * tp / (tp + fp + 100)}
            curve = {"positives": 100, "negatives": 100, "thresholds": [0.0], "tp": [tp], "fp": [fp]}
            curve["row_answers"] = RowAnswers(truth, yes).as_dict()
            change_student(uow, str(version.job_id), number, version.method, metrics=metrics)
            uow.students.keep_curves([((number, version.method), pack(curve))], str(version.job_id))
            totals.add(
                [StudentRow("", number, label, version.method, StudentState.SUCCEEDED, metrics=metrics)]
            )
        values = totals.metrics() | {"test_part": {"digest": digest}}
        is_version = (model_versions.c.model == "pets") & (model_versions.c.version == version.version)
        uow.connection.execute(model_versions.update().where(is_version).values(metrics=values))


def test_a_change_within_noise_has_no_colour_and_other_test_rows_are_said(
    sign_in: Enter, things: Things, store: Store
) -> None:
    person = sign_in("train")
    pages = {}
    for digest in ("same", "other"):
        before, after = publish_pets(store, alias=digest), publish_pets(store, alias=None)
        measured(store, before, "same", 90, 10)
        measured(store, after, digest, 84, 10)
        two = f"a={before.version}&b={after.version}"
        moved = person.get(f"/ui/models/pets/move?version={after.version}&alias={digest}").text
        pages[digest] = section(person.get(f"{PATH}?{two}").text, "Biggest losers"), moved
    losers, move = pages["other"]
    assert "other test rows" in move
    assert 'class="num">-0.0340 <span class="muted">± 0.0343</span>' in losers
    assert 'class="num">-0.0340 <span class="muted">± 0.0242</span></td>' in move
    losers, move = pages["same"]
    assert "measured on the same test rows" in move
    assert 'class="num worse">-0.0340 <span class="muted">± 0.0138</span>' in losers
    assert 'class="num worse">-0.0340 <span class="muted">± 0.0138</span> (worse)' in move


def test_classes_are_compared_again_when_a_job_was_retried(
    sign_in: Enter, things: Things, store: Store
) -> None:
    person = sign_in("train")
    assert "1 better, 1 worse, 0 equal" in person.get(f"{PATH}?a=1&b=2").text
    first = sa.select(model_versions.c.job_id).where(
        model_versions.c.model == "pets", model_versions.c.version == 1
    )
    with store.begin() as uow:
        dog = (job_students.c.job_id == first.scalar_subquery()) & (job_students.c.label == "dog")
        changed = uow.connection.execute(job_students.update().where(dog).values(metrics={"f1": 1.0}))
        assert changed.rowcount >= 1
        uow.connection.execute(
            jobs.update().where(jobs.c.id == first.scalar_subquery()).values(attempt=jobs.c.attempt + 1)
        )
    assert "0 better, 2 worse, 0 equal" in person.get(f"{PATH}?a=1&b=2").text


def test_the_curves_of_the_worst_class_are_shown_first_and_any_other_by_its_name(
    sign_in: Enter, things: Things
) -> None:
    person = sign_in("train")
    page = Page(person.get(f"{PATH}?a=1&b=2").text)
    assert [value for value in page.values("path", "class") if value.startswith("curve")] == [
        "curve",
        "curve second",
    ] * 2
    assert page.values("input", "value")[-1] == "cat"
    other = person.get(f"{PATH}?a=1&b=2&class=dog").text
    assert re.search(r'name="class" value="dog"', other)
    missing = person.get(f"{PATH}?a=1&b=2&class=unicorn")
    assert missing.status_code == 200
    assert "no curves of this class" in missing.text


def test_parameters_that_differ_are_named_with_both_values(
    sign_in: Enter, things: Things, store: Store
) -> None:
    before = publish_pets(store)
    after = publish_pets(store)
    with store.begin() as uow:
        for version, C in ((before, 1.0), (after, 1000.0)):
            spec = {"student": {"method": "svm", "C": C}, "threshold": {"folds": 3}}
            uow.connection.execute(sa.update(jobs).where(jobs.c.id == version.job_id).values(spec=spec))
    text = section(sign_in("train").get(f"{PATH}?a={before.version}&b={after.version}").text, "What differs")
    assert "student.C" in text
    assert "1000.0" in text
    assert "folds" not in text
    assert "student.method" not in text


def test_a_point_lies_above_the_diagonal_when_its_metric_has_grown() -> None:
    better, worse = Pair("a", 0, 0, 0.72, 0.78), Pair("b", 1, 1, 0.88, 0.71)
    drawn = scattered([better, worse], [better])
    assert (drawn["low"], drawn["high"]) == (pytest.approx(0.7), pytest.approx(0.9))
    [(_, mark)] = drawn["marks"]
    assert mark.x + mark.y < SIDE, "above the diagonal from the lower left to the upper right"
    positions = re.findall(r"M([\d.]+) ([\d.]+)h0", drawn["dots"])
    assert [float(x) + float(y) < SIDE for x, y in positions] == [True, False]
    empty = scattered([], [])
    assert (empty["dots"], empty["low"], empty["high"]) == ("", 0.0, 1.0)


def test_the_history_of_an_alias_tells_who_moved_it_from_where(sign_in: Enter, things: Things) -> None:
    person = sign_in("train")
    moved = person.post("/ui/models/pets/aliases/production", version="1", revision="1")
    assert moved.status_code == 303, moved.text
    text = person.get("/ui/models/pets/aliases/production").text
    assert "Ada" in text
    assert f"{PATH}?a=2&amp;b=1" in text
    assert "publication of a job" in text
    assert person.get("/ui/models/pets/aliases/never").status_code == 404
