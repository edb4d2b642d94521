"""Results kept beside the report: they give the same report again, and only where they belong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.compact_curve import CURVES
from experiments.curves import read_curve
from experiments.gathered import Gathered, gather, keep
from experiments.page import page
from experiments.remarks import findings, remarks
from experiments.report import Facts, numbers, report_tables
from experiments.resampling import Resampling
from experiments.results import ResultStore, Run
from experiments.shelf import Shelf

from .conftest import EFFORT, fill, fill_curve, fill_probabilities

FACTS = Facts("stms reproduce", 0, 5, 1)
RUN = Run("vowel", "open", 0)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "shelf", EFFORT)


@pytest.fixture
def nothing(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "nothing")


@pytest.fixture
def full(store: ResultStore, shelf: Shelf) -> Gathered:
    """Every part of something; the curve is that of the plan."""
    fill(store, Run("vowel", "open", 1), {m: [0.5, 0.6, 0.7] for m in ("teacher", "svm", "gsvm0", "gsvm")})
    fill(store, Run("news20_bydate", "open", 0), {m: [0.5, 0.6] for m in ("teacher", "svm", "gsvm0", "gsvm")})
    fill_probabilities(store, RUN)
    fill_curve(store, "letter", dict.fromkeys(CURVES["letter"].sizes, 0.95))
    curve = read_curve(store, "letter")
    assert curve is not None
    seconds = {"sparse": 2e-6, "dense": 9e-6, "sparse_served": 2e-5, "dense_served": 1e-5}
    line = {"label": "c0", "columns": 32199, "seconds_a_query": 1.5e-6, "seconds_a_nonzero": 4e-9}
    groups = [{"rows": 40, "nonzeros": 20.0, "seconds": seconds}]
    found = {**line, "protocol": "r", "groups": groups, "seconds": 3.0}
    store.write(Run("news20_bydate", "open", 0), "sparse-query", "s", found)
    made = gather(store, shelf)
    planned = json.loads(json.dumps(CURVES["letter"].as_dict()))
    return replace(made, curves={"letter": replace(curve, plan=planned)})


def rounded(value: Any) -> Any:
    """The same with numbers of six digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def test_a_report_from_the_shelf_alone_says_the_same(full: Gathered, shelf: Shelf, nothing: ResultStore):
    keep(full, shelf)
    again = gather(nothing, shelf)
    assert again.shelved == (
        "vowel (paper)",
        "vowel (open)",
        "news20_bydate (open)",
        "letter (compact)",
        "vowel (probabilities)",
        "news20_bydate (sparse queries)",
    )
    assert [table.markdown() for table in report_tables(again)] == [
        table.markdown() for table in report_tables(full)
    ]
    assert rounded(numbers(again, FACTS)) == rounded(numbers(full, FACTS))
    assert findings(again) == findings(full)
    assert remarks(again)[:-1] == remarks(full)
    assert remarks(again)[-1].endswith("vowel (probabilities); news20_bydate (sparse queries).")
    assert page([], {}, [], again) == page([], {}, [], full)


def test_what_is_kept_again_does_not_change(full: Gathered, shelf: Shelf, nothing: ResultStore):
    keep(full, shelf)
    before = {path.name: path.read_text() for path in shelf.root.iterdir()}
    keep(gather(nothing, shelf), shelf)
    assert {path.name: path.read_text() for path in shelf.root.iterdir()} == before
    assert len(before) == 6


def test_the_work_folder_goes_before_the_shelf_unless_it_has_fewer_splits(
    full: Gathered, store: ResultStore, shelf: Shelf, tmp_path: Path
):
    keep(full, shelf)
    assert gather(store, shelf).shelved == ()
    fewer = ResultStore(tmp_path / "fewer")
    fill(fewer, RUN, {m: [0.1, 0.1, 0.1] for m in ("teacher", "svm", "gsvm0", "gsvm")})
    found = gather(fewer, shelf)
    assert len(found.summary["vowel"]["open"].runs) == 2
    assert "vowel (open)" in found.shelved


def test_results_of_another_seed_or_plan_are_not_taken(full: Gathered, shelf: Shelf, nothing: ResultStore):
    keep(full, shelf)
    for effort in (replace(EFFORT, seed=1), replace(EFFORT, resampling=Resampling(6))):
        assert gather(nothing, replace(shelf, effort=effort)).shelved == ()
    path = shelf.root / "vowel-open.json"
    path.write_text(path.read_text().replace('"folds": 10', '"folds": 9'))
    # Without its outcome a result of the other parts has nothing to belong to.
    assert not {"vowel (open)", "vowel (probabilities)"} & set(gather(nothing, shelf).shelved)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other"}'])
def test_a_file_that_is_not_ours_is_refused(shelf: Shelf, nothing: ResultStore, text: str):
    shelf.root.mkdir()
    (shelf.root / "vowel-open.json").write_text(text)
    with pytest.raises(ValueError, match=r"vowel-open\.json is not"):
        gather(nothing, shelf)
