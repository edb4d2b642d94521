"""What a version keeps of the columns of the data set that it was trained on."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.entities import Dataset

BASE = {"name": "index_base", "value": "1", "reason": "the index 0 does not occur"}


@pytest.mark.parametrize(
    ("summary", "inputs"),
    [
        (
            {"features": [{"name": "a"}, {"name": "b"}], "label_column": "kind"},
            {"columns": ["a", "b"], "label_column": "kind"},
        ),
        ({"features": [{"name": "a"}]}, {}),
        ({"features": [{"name": None}, {"name": None}], "reading": [BASE]}, {"index_base": 1}),
        ({}, {}),
    ],
)
def test_names_are_kept_if_all_are_known(summary: dict[str, Any], inputs: dict[str, Any]) -> None:
    dataset = Dataset("ds", "0" * 64, "n", "csv", 1, "0" * 64, 4, 0, 2, ("x", "y"), summary, 0.0, "key")
    assert dataset.inputs == inputs
