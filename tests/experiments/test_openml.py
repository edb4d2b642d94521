"""Fetching from OpenML, with a service that is played."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments.data import DataMissing, load
from experiments.openml import fetch, fetch_missing


def vowel_of_openml(**arguments: Any) -> SimpleNamespace:
    assert arguments == {"data_id": 307, "as_frame": False, "parser": "liac-arff"}
    rng = np.random.default_rng(0)
    names = ["Train_or_Test", "Speaker_Number", "Sex", *(f"Feature_{k}" for k in range(10))]
    target = np.repeat([f"h{k}" for k in range(11)], 90)
    return SimpleNamespace(data=rng.standard_normal((990, 13)), feature_names=names, target=target)


def test_a_fetched_set_is_cut_by_the_sizes_of_table_2(tmp_path: Path):
    path = fetch("vowel", tmp_path / "new", vowel_of_openml)
    split = load("vowel", path.parent)
    assert (split.train.n, split.test.n, split.train.d, split.train.K) == (528, 462, 10, 11)
    assert set(split.train.class_counts) == {48}
    assert split.groups is None


def test_a_file_that_is_there_is_kept(tmp_path: Path):
    (tmp_path / "vowel.npz").write_bytes(b"mine")
    assert fetch("vowel", tmp_path, vowel_of_openml).read_bytes() == b"mine"


def test_sets_that_are_not_on_openml_are_left_to_the_folder(tmp_path: Path):
    found = fetch_missing(["mnist", "vowel", "news20_bydate"], tmp_path, vowel_of_openml)
    assert found == [tmp_path / "vowel.npz"]


def no_network(**_: Any) -> SimpleNamespace:
    raise OSError("no route to host")


def other_set(**_: Any) -> SimpleNamespace:
    return SimpleNamespace(data=np.zeros((4, 2)), feature_names=["a", "b"], target=["x", "x", "y", "y"])


@pytest.mark.parametrize(
    ("name", "download", "message"),
    [
        ("mnist", vowel_of_openml, "not fetched"),
        ("yeast", no_network, "no route"),
        ("yeast", other_set, "Table 2"),
    ],
)
def test_what_cannot_be_fetched_is_told_and_leaves_no_file(tmp_path: Path, name: str, download, message: str):
    with pytest.raises(DataMissing, match=message):
        fetch(name, tmp_path, download)
    assert list(tmp_path.iterdir()) == []
