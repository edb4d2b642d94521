"""How values are shown: names in place of ids, six digits in place of sixteen, exact values within reach."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from app.domain.curves import Curve, pack
from app.services.keys import create_key, key_names, revoke_key
from app.store.unit_of_work import Store
from app.web.curves import drawn
from app.web.formats import brief_json, rate, significant
from app.web.tuning import in_words
from tests.app.students import change_student
from tests.app.web.conftest import Page, Person, Things

Enter = Callable[..., Person]
EXACT = 0.12345678901234567


def test_keys_and_data_sets_are_shown_by_name_where_it_is_known(
    sign_in: Enter, store: Store, add_job: Any, add_dataset: Any
) -> None:
    key, _ = create_key(store, "night watch", {"train"})
    with store.begin() as uow:
        dataset = add_dataset(uow, name="leaves", size_bytes=10**9, created_by=key.id)
        known = add_job(uow, dataset_id=dataset.id, created_by=key.id)
        unknown = add_job(uow, dataset_id=dataset.id, created_by="key_gone")
        uow.audit.append("key.create", key.id)
    person = sign_in("operator")
    listed = Page(person.get("/ui/jobs").text)
    assert {"Jobs of night watch", "Jobs of key_gone"} <= set(listed.values("a", "aria-label"))
    for path in (
        f"/ui/jobs/{known.id}",
        f"/ui/datasets/{dataset.id}",
        "/ui/audit",
        f"/ui/jobs?created_by={key.id}",
    ):
        page = Page(person.get(path).text)
        assert "night watch" in page.text, path
        assert key.id not in page.text, path
        assert key.id in page.values("bdi", "title"), path
    shown = Page(person.get(f"/ui/jobs/{known.id}").text)
    assert "leaves" in shown.text
    assert dataset.id not in shown.text
    assert "key_gone" in Page(person.get(f"/ui/jobs/{unknown.id}").text).text


def test_names_are_those_of_the_tenant_and_stay_when_a_key_is_revoked(store: Store) -> None:
    key, _ = create_key(store, "night watch", {"train"})
    revoke_key(store, key.id)
    assert key_names(store, [key.id, key.id, "key_gone"]) == {key.id: "night watch"}
    assert key_names(store.of_tenant("rival"), [key.id]) == {}
    assert key_names(store.of_all_tenants(), [key.id]) == {key.id: "night watch"}


def test_a_threshold_has_six_digits_and_its_exact_value_is_published(
    sign_in: Enter, things: Things, store: Store
) -> None:
    with store.begin() as uow:
        job_id = str(uow.models.version("pets", 1).job_id)
        curve = {"positives": 4, "negatives": 6, "thresholds": [0.5, EXACT], "tp": [1, 3], "fp": [0, 1]}
        uow.students.keep_curves([((0, "svm"), pack(curve))], job_id)
        change_student(uow, job_id, 0, "svm", threshold=EXACT, chosen={"C": 3.1622776601683795})
    page = Page(sign_in("train").get(f"/ui/jobs/{job_id}/classes/0").text)
    assert "0.123457" in page.text
    assert not re.search(r"\d\.\d{7}", page.text)
    assert {str(EXACT)} <= set(page.values("output", "title")) & set(page.values("span", "title"))
    assert '{"C": 3.1622776601683795}' in page.values("dd", "title")
    [field] = [known for _, known in page.elements if known.get("id") == "t"]
    assert (field["value"], field["title"]) == ("0.123457", str(EXACT))
    [hidden] = [known for _, known in page.elements if "data-threshold" in known]
    assert float(hidden["value"] or "") == EXACT


@pytest.mark.parametrize(
    ("thresholds", "typed"),
    [
        ([0.5, EXACT, -1.0], "0.123457"),
        ([0.5, EXACT, 0.1234567], str(EXACT)),
        ([2e-7, 1e-7], "1e-07"),
        ([7.0], "7"),
    ],
)
def test_a_typed_threshold_chooses_the_same_point(thresholds: list[float], typed: str) -> None:
    counts = tuple(range(len(thresholds)))
    curve = Curve(9, 9, tuple(thresholds), counts, counts)
    exact = EXACT if EXACT in thresholds[:2] else thresholds[-1]
    shown = drawn(curve, exact, 1.0)
    assert shown["typed"] == typed
    assert curve.thresholds[shown["point"]] == exact
    assert drawn(curve, float(typed), 1.0)["point"] == shown["point"]


@pytest.mark.parametrize(
    ("most", "point", "is_unreached"), [(0.0, 0, True), (28.9, 0, True), (29.0, 0, False), (57.0, 1, False)]
)
def test_a_share_of_false_yes_that_no_point_keeps_shows_the_strictest(
    most: float, point: int, is_unreached: bool
) -> None:
    curve = Curve(9, 100, (2.0, 1.0, 0.0), (1, 5, 9), (29, 57, 58))
    shown = drawn(curve, 0.0, 1.0, most)
    assert (shown["point"], shown["is_unreached"]) == (point, is_unreached)


def test_what_a_search_chose_is_said_in_words_and_a_fit_without_a_search_says_nothing(
    sign_in: Enter, things: Things, store: Store
) -> None:
    chosen = {
        "C": 100.0,
        "standard_error": 0.00685442,
        "params": {"margins": [0.5, 1]},
        "strategy": "halving",
    }
    assert in_words(chosen) == "C 100, standard error 0.006854, params (margins 0.5 and 1), strategy halving"
    assert in_words({"rivals": 0, "least_score": -0.0852633}) == ""
    assert in_words({"rivals": 2, "least_score": -0.0852633}) == "rivals 2"
    path, person = f"/ui/jobs/{things.job.id}/classes/0", sign_in("train")
    searched = Page(person.get(path).text).text
    assert "Chosen by the searchC 1, score 0.5" in searched
    assert all(name in searched for name in ("Objective", "Relative duality gap", "Iterations"))
    facts = {"objective": 0.0, "gap": None, "iterations": 0, "chosen": {"rivals": 0, "least_score": -0.09}}
    with store.begin() as uow:
        change_student(uow, things.job.id, 0, "svm", **facts)
    fitted = Page(person.get(path).text).text
    listed = Page(person.get(f"/ui/fragments/jobs/{things.job.id}/classes?sort=label").text).text
    for name in ("Chosen by the search", "Objective", "gap", "Gap", "Iterations"):
        assert name not in fitted + listed


def test_numbers_in_json_and_text_are_cut_to_six_digits() -> None:
    assert significant(None) == "–"
    assert significant(-1234.56789) == "-1234.57"
    assert brief_json({"a": [1 / 3, 2], "b": None, "c": "0.123456789"}) == (
        '{"a": [0.333333, 2], "b": null, "c": "0.123456789"}'
    )


def test_rates_have_one_decimal_place() -> None:
    values = (None, 0.0, 0.099, 12.34, 4321.0)
    assert [rate(value) for value in values] == ["–", "0.0", "0.1", "12.3", "4\u202f321.0"]
