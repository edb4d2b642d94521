"""All parts in one run: progress, resuming, missing data, and parts that need others first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from core.features.spec import FeatureSpec
from lab.experiments import plans
from lab.experiments.data import DataMissing
from lab.experiments.parts import Request, Update, reproduce
from lab.experiments.plans import CurvePlan
from lab.experiments.store import Store

from .conftest import EFFORT, gather

TINY = CurvePlan(FeatureSpec("nystroem", n_components=10), sizes=(2, 3), steps=5)


@pytest.mark.long
@pytest.mark.usefixtures("_small_plans")
def test_progress_counts_all_records_and_nothing_is_made_twice(folder: Path, tmp_path: Path):
    store, heard = Store(tmp_path / "work.jsonl"), list[Update]()
    request = Request(["yeast"], ["open"], ["protocol"], max_splits=2)
    reproduce(request, folder, store, EFFORT, heard.append)
    made = [update for update in heard if not update.note]
    assert [update.done for update in made] == list(range(1, 35))
    assert {update.total for update in heard} == {34}
    assert {update.run.split for update in made} == {0, 1}
    assert any("teacher C" in update.note for update in heard)
    again = list[Update]()
    reproduce(request, folder, Store(store.path), EFFORT, again.append)
    assert len(again) == 34
    assert not any(update.new for update in again)


@pytest.mark.long
@pytest.mark.usefixtures("_small_plans")
def test_all_parts_end_in_one_report(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in list(plans.CURVES):
        monkeypatch.delitem(plans.CURVES, name)
    monkeypatch.setitem(plans.CURVES, "vowel", TINY)
    store, heard = Store(tmp_path / "work.jsonl"), list[Update]()
    reproduce(Request(["vowel", "reuters_r8"], ["open"]), folder, store, EFFORT, heard.append)
    found = gather(store)
    assert [one.data_set for one in found.outcomes] == ["vowel", "reuters_r8"]
    assert list(found.probabilities) == ["vowel", "reuters_r8"]
    assert [point["landmarks"] for point in found.curves["vowel"]["points"]] == [2, 3]
    assert all(seconds > 0 for seconds in found.seconds().values())
    assert heard[-1].done == heard[-1].total == 17 * 2 + 2 + 3
    again = list[Update]()
    reproduce(Request(["vowel", "reuters_r8"], ["open"]), folder, store, EFFORT, again.append)
    assert not any(update.new for update in again)


@pytest.mark.usefixtures("_small_plans")
def test_a_part_that_needs_the_protocol_is_skipped_with_a_message(folder: Path, tmp_path: Path):
    store, heard = Store(tmp_path / "work.jsonl"), list[Update]()
    reproduce(Request(["reuters_r8"], ["open"], ["probabilities"]), folder, store, EFFORT, heard.append)
    assert len(heard) == 1
    assert "run the part protocol" in heard[0].note
    assert gather(store).probabilities == {}


@pytest.mark.usefixtures("_small_plans")
def test_missing_data_are_reported_or_passed_over(folder: Path, tmp_path: Path):
    store, heard = Store(tmp_path / "work.jsonl"), list[Update]()
    request = Request(["yeast", "letter"], ["open"], ["protocol", "compact"], max_splits=1)
    with pytest.raises(DataMissing, match=r"letter\.npz"):
        reproduce(request, folder, store, EFFORT, heard.append)
    assert not heard
    reproduce(replace(request, skip_missing=True), folder, store, EFFORT, heard.append)
    assert heard[0].note.startswith("not run: There is no file")
    assert [update.run.data_set for update in heard if update.name == "data"] == ["letter"]
    assert [one.data_set for one in gather(store).outcomes] == ["yeast"]


def test_a_run_without_anything_to_do_is_an_error(folder: Path, tmp_path: Path):
    with pytest.raises(DataMissing, match="nothing to do"):
        reproduce(
            Request(["vowel"], ["paper"], ["compact", "probabilities"]),
            folder,
            Store(tmp_path / "work.jsonl"),
            EFFORT,
            lambda _: None,
        )
    request = Request(["letter"], ["paper"], ["protocol"], skip_missing=True)
    with pytest.raises(DataMissing, match="nothing to do"):
        reproduce(request, folder, Store(tmp_path / "work.jsonl"), EFFORT, lambda _: None)
    assert list(tmp_path.iterdir()) == [folder]
