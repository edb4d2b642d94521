"""All parts in one run: progress, resuming, missing data, and what cannot be done yet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.features.spec import FeatureSpec
from experiments import compact_curve
from experiments.compact_curve import CurvePlan
from experiments.data import DataMissing, load
from experiments.gathered import gather
from experiments.reproduce import Asked, Update, reproduce
from experiments.results import ResultStore

from .conftest import EFFORT

TINY = CurvePlan(FeatureSpec("nystroem", n_components=10), sizes=(2, 3), steps=5)


@pytest.mark.usefixtures("_small_plans")
def test_progress_counts_all_records_and_estimates_the_rest(folder: Path, tmp_path: Path):
    store, heard = ResultStore(tmp_path), list[Update]()
    asked = Asked(["yeast"], ["open"], ["protocol"], max_splits=2)
    reproduce(asked, folder, store, EFFORT, heard.append)
    made = [update for update in heard if not update.note]
    assert [update.done for update in made] == list(range(1, 35))
    assert {update.total for update in heard} == {34}
    assert {update.run.split for update in made} == {0, 1}
    assert made[-1].seconds_left == pytest.approx(0.0, abs=1e-6)
    assert all(update.seconds_left is not None and update.seconds_left > 0 for update in made[:-1])
    notes = [update.note for update in heard if update.note]
    assert any("teacher C" in note for note in notes)
    again = list[Update]()
    reproduce(asked, folder, store, EFFORT, again.append)
    assert not any(update.new for update in again)
    assert all(update.seconds_left == 0.0 for update in again)


@pytest.mark.usefixtures("_small_plans")
def test_a_resumed_run_knows_at_once_how_long_it_will_take(folder: Path, tmp_path: Path):
    store, heard = ResultStore(tmp_path), list[Update]()
    asked = Asked(["yeast"], ["open"], ["protocol"], max_splits=2)
    reproduce(replace(asked, max_splits=1), folder, store, EFFORT, lambda _: None)
    for path in (tmp_path / "yeast" / "open" / "split-00").glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 100.0}))
    reproduce(asked, folder, store, EFFORT, heard.append)
    # The 17 records of the first split took 100 seconds each, by their own word; the next one has more rows.
    rows = [load("yeast", folder, split).train.n for split in (0, 1)]
    assert heard[0].seconds_left == pytest.approx(1700.0 * rows[1] / rows[0], rel=0.05)


@pytest.mark.usefixtures("_small_plans")
def test_all_parts_end_in_one_report(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compact_curve, "CURVES", {"vowel": TINY})
    monkeypatch.setattr("experiments.curves.CURVES", {"vowel": TINY})
    store, heard = ResultStore(tmp_path), list[Update]()
    reproduce(Asked(["vowel", "reuters_r8"], ["open"]), folder, store, EFFORT, heard.append)
    found = gather(store)
    assert list(found.summary) == ["vowel", "reuters_r8"]
    assert list(found.probabilities) == ["vowel", "reuters_r8"]
    assert list(found.sparse) == ["reuters_r8"]
    assert [point.landmarks for point in found.curves["vowel"].points] == [2, 3]
    assert all(seconds > 0 for seconds in found.seconds().values())
    assert heard[-1].done == heard[-1].total == 17 * 2 + 3 * 2 + 1 + 7
    again = list[Update]()
    reproduce(Asked(["vowel", "reuters_r8"], ["open"]), folder, store, EFFORT, again.append)
    assert not any(update.new for update in again)


@pytest.mark.usefixtures("_small_plans")
@pytest.mark.parametrize("part", ["probabilities", "sparse"])
def test_a_part_that_needs_the_protocol_says_so_and_the_run_goes_on(folder: Path, tmp_path: Path, part: str):
    store, heard = ResultStore(tmp_path), list[Update]()
    reproduce(Asked(["reuters_r8"], ["open"], [part]), folder, store, EFFORT, heard.append)  # type: ignore[list-item]
    assert len(heard) == 1
    assert "run the part protocol" in heard[0].note
    assert gather(store).probabilities == {}


@pytest.mark.usefixtures("_small_plans")
def test_missing_data_are_told_or_passed_over(folder: Path, tmp_path: Path):
    store, heard = ResultStore(tmp_path / "work"), list[Update]()
    asked = Asked(["yeast", "letter"], ["open"], ["protocol", "compact"], max_splits=1)
    with pytest.raises(DataMissing, match=r"letter\.npz"):
        reproduce(asked, folder, store, EFFORT, heard.append)
    assert not heard
    reproduce(replace(asked, skip_missing=True), folder, store, EFFORT, heard.append)
    assert heard[0].note.startswith("not run: There is no file")
    assert [update.run.data_set for update in heard if update.name == "data"] == ["letter"]
    assert gather(store).summary.keys() == {"yeast"}


def test_a_run_without_anything_to_do_is_a_fault(folder: Path, tmp_path: Path):
    with pytest.raises(DataMissing, match="nothing to do"):
        reproduce(
            Asked(["vowel"], ["paper"], ["compact", "probabilities", "sparse"]),
            folder,
            ResultStore(tmp_path),
            EFFORT,
            lambda _: None,
        )
    asked = Asked(["letter"], ["paper"], ["protocol"], skip_missing=True)
    with pytest.raises(DataMissing, match="nothing to do"):
        reproduce(asked, folder, ResultStore(tmp_path), EFFORT, lambda _: None)
    assert np.array_equal(list(tmp_path.iterdir()), [folder])
