"""Public data sets in the form in which people bring them are read, with little more than their label."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from app.ingest.options import ReadingOptions
from app.ingest.orders import DatasetOrder
from app.ingest.reading import read_dataset

FOLDER = Path(os.environ.get("STMS_RAW", Path(__file__).parents[4] / "shared" / "raw"))
SAID: dict[str, dict[str, Any]] = {
    "SMSSpamCollection.tsv": {"label_column": "0"},
    "Symptom2Disease.csv": {"label_column": "label"},
    "adult.data": {},
    "adult.test": {"skip_lines": "1"},
    "ag_news_test.csv": {"label_column": "0"},
    "agaricus-lepiota.data": {"label_column": "0"},
    "auto-mpg.data": {"label_column": "7"},
    "banking77_test.csv": {},
    "banking77_train.csv": {},
    "car.data": {},
    "crx.data": {},
    "ctg.csv": {},
    "dermatology.data": {},
    "flag.data": {"label_column": "6"},
    "imports-85.data": {"label_column": "0"},
    "language_detection.csv": {},
    "penguins.csv": {},
    "pokemon.csv": {"label_column": "Type 1"},
    "ramen-ratings.csv": {"label_column": "Style"},
    "roman_urdu.csv": {"label_column": "1"},
    "skyserver.csv": {},
    "snips_train.csv": {"label_column": "intent"},
    "snips_validate.csv": {"label_column": "intent"},
    "student-por.csv": {"label_column": "Mjob"},
    "telco_churn.csv": {},
    "titanic_test_unlabelled.csv": {"label_column": "Pclass"},
    "titanic_train.csv": {"label_column": "Survived"},
}
ROWS = {
    "SMSSpamCollection.tsv": (5574, 2),
    "adult.data": (32561, 2),
    "adult.test": (16281, 2),
    "ag_news_test.csv": (7600, 4),
    "banking77_train.csv": (10003, 77),
    "ctg.csv": (2126, 10),
    "language_detection.csv": (10337, 17),
    "pokemon.csv": (800, 18),
    "roman_urdu.csv": (20228, 3),
    "snips_train.csv": (13784, 7),
    "titanic_train.csv": (891, 2),
}
"""Rows and classes as they were published, but for classes of a single row."""
LEAKS = {"ctg.csv"}
"""Files with columns that tell the label: A to SUSP of this one are its classes."""
REPEATED = {"SMSSpamCollection.tsv", "roman_urdu.csv"}


@pytest.mark.parametrize("name", sorted(SAID))
def test_a_public_file_is_read(name: str, tmp_path: Path) -> None:
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{path} is not there; STMS_RAW names the folder of public files")
    options = ReadingOptions.parse(**SAID[name])
    content = read_dataset(
        DatasetOrder(
            source=str(path),
            rows=str(tmp_path / "rows"),
            declared=None,
            filename=name,
            max_rows=10**6,
            max_columns=1000,
            max_bytes=10**9,
            temp_folder=str(tmp_path),
            options=options,
        )
    )
    if name in ROWS:
        assert (content.rows, len(content.classes)) == ROWS[name]
    assert (tmp_path / "rows").stat().st_size > 0
    codes = {warning["code"] for warning in content.summary["warnings"]}
    assert ("tells_label" in codes) == (name in LEAKS)
    assert ("repeated_rows" in codes) == (name in REPEATED)
    assert "several_labels" not in codes


def test_every_file_of_the_folder_is_tried() -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"{FOLDER} is not there; STMS_RAW names the folder of public files")
    # The questions of TREC are no table: a blank separates their label from a text with blanks.
    others = {"README.md", "TREC_10.label", "trec_train_5500.label"}
    assert {path.name for path in FOLDER.iterdir()} - others == set(SAID)
