"""The public files, how each is uploaded, and its cells as this program reads them by itself."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

Cells = list[str]
_LONGEST_CELL: Final = 2**22
_ENOUGH_ROWS: Final = 1000
_MOST_DRAWS: Final = 3
_ADULT: Final = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,"
    "capital-gain,capital-loss,hours-per-week,native-country,income"
)


@dataclass(frozen=True, slots=True)
class RawSet:
    """A public file. label: name of the column of the classes, its number in a file without a header.

    said: what the upload says besides the label, of separator and names of columns. names: of the columns of
    a file without a header. test: the file of the official test part. read: the cells of a file; None for
    commas. leaks: columns that give the class away, which are left out where accuracy is measured.
    """

    file: str
    label: str
    said: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    test: str | None = None
    read: Callable[[str], Iterator[Cells]] | None = None
    is_text: bool = False
    leaks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Rows to learn from and rows to measure on, each a list of cells; names of their columns."""

    names: Sequence[str]
    label: int
    train: list[Cells]
    test: list[Cells]

    def without(self, names: Collection[str]) -> Split:
        """The same rows without some columns."""
        kept = [place for place, name in enumerate(self.names) if name not in names]
        parts = ([[row[k] for k in kept] for row in part] for part in (self.train, self.test))
        return Split([self.names[k] for k in kept], kept.index(self.label), *parts)

    def write(self, path: Path) -> None:
        """The rows to learn from, as a CSV file with a header."""
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.names)
            writer.writerows(self.train)


def _csv(text: str, separator: str = ",", *, quotes: bool = True) -> Iterator[Cells]:
    quoting = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    return csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, quoting=quoting, skipinitialspace=True
    )


def _tabs(text: str) -> Iterator[Cells]:
    return _csv(text, "\t", quotes=False)


def _semicolons(text: str) -> Iterator[Cells]:
    return _csv(text, ";")


def _blanks(text: str) -> Iterator[Cells]:
    for line in text.splitlines():
        yield [cell.strip('"') for cell in re.findall(r'"[^"]*"|[^\s"]+', line)]


def _adult(text: str) -> Iterator[Cells]:
    """The test part has a line above the table, and a dot behind each class."""
    for row in _csv(text):
        if len(row) > 1:
            yield [*row[:-1], row[-1].rstrip(".")]


def _questions(text: str) -> Iterator[Cells]:
    for line in text.splitlines():
        label, question = line.split(" ", 1)
        yield [question, label.partition(":")[0]]


def _fine_questions(text: str) -> Iterator[Cells]:
    for line in text.splitlines():
        label, question = line.split(" ", 1)
        yield [question, label]


def _numbered(n: int) -> tuple[str, ...]:
    return tuple(f"c{k}" for k in range(n))


TEXTS: Final[Mapping[str, RawSet]] = {
    "sms": RawSet("SMSSpamCollection.tsv", "0", {}, ("label", "text"), read=_tabs, is_text=True),
    "ag_news": RawSet("ag_news_test.csv", "0", {}, ("label", "title", "text"), is_text=True),
    "banking77": RawSet("banking77_train.csv", "category", test="banking77_test.csv", is_text=True),
    "language": RawSet("language_detection.csv", "Language", is_text=True),
    "symptoms": RawSet("Symptom2Disease.csv", "label", is_text=True),
    "snips": RawSet(
        "snips_train.csv",
        "intent",
        test="snips_validate.csv",
        is_text=True,
        leaks=("labels", "delexicalised"),
    ),
    "roman_urdu": RawSet("roman_urdu.csv", "1", {}, ("text", "label", "more"), is_text=True),
    "trec6": RawSet(
        "trec_train_5500.label", "1", {}, ("text", "label"), "TREC_10.label", _questions, is_text=True
    ),
    "trec50": RawSet(
        "trec_train_5500.label", "1", {}, ("text", "label"), "TREC_10.label", _fine_questions, is_text=True
    ),
}
"""Sets of texts. The questions of TREC are no table and are brought into one first."""

TABLES: Final[Mapping[str, RawSet]] = {
    "adult": RawSet(
        "adult.data",
        "14",
        {"column_names": _ADULT.split(",")},
        tuple(_ADULT.split(",")),
        "adult.test",
        read=_adult,
    ),
    "car": RawSet("car.data", "deal"),
    "mushroom": RawSet("agaricus-lepiota.data", "0", {}, _numbered(23)),
    "student": RawSet("student-por.csv", "Mjob", read=_semicolons),
    "flags": RawSet("flag.data", "6", {}, _numbered(30)),
    "crx": RawSet("crx.data", "15", {}, _numbered(16)),
    "automobile": RawSet("imports-85.data", "0", {}, _numbered(26)),
    "dermatology": RawSet("dermatology.data", "Classification"),
    "pokemon": RawSet("pokemon.csv", "Type 1"),
    "penguins": RawSet("penguins.csv", "species"),
    "titanic": RawSet("titanic_train.csv", "Survived"),
    "ramen": RawSet("ramen-ratings.csv", "Style"),
    "skyserver": RawSet("skyserver.csv", "class"),
    "auto_mpg": RawSet("auto-mpg.data", "7", {}, _numbered(9), read=_blanks),
    "telco": RawSet("telco_churn.csv", "Churn"),
    "ctg": RawSet("ctg.csv", "CLASS", leaks=("A", "B", "C", "D", "E", "AD", "DE", "LD", "FS", "SUSP")),
}
"""Sets of columns, most of them of several kinds."""

SETS: Final = {**TABLES, **TEXTS}


def table_of(one: RawSet, name: str, folder: Path) -> tuple[tuple[str, ...], list[Cells]]:
    """Names of the columns, all different, and the rows with a label."""
    data = (folder / name).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    usual = csv.field_size_limit(_LONGEST_CELL)
    try:
        rows = [row for row in (one.read or _csv)(text) if row]
    finally:
        csv.field_size_limit(usual)
    names = one.names or distinct(rows.pop(0))
    label = _label(one, names)
    return names, [row for row in rows if len(row) == len(names) and row[label].strip()]


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names of which none is there twice."""
    found: list[str] = []
    for name in names:
        bare = name.strip()
        found.append(bare if bare not in found else f"{bare}_{len(found)}")
    return tuple(found)


def _label(one: RawSet, names: Sequence[str]) -> int:
    return int(one.label) if one.names else list(names).index(one.label)


def splits(one: RawSet, folder: Path, most_rows: int) -> list[Split]:
    """The official parts, or thirds that are held out by classes, several of small sets.

    most_rows: of rows to learn from. Classes of fewer than four rows are left out.
    """
    names, rows = table_of(one, one.file, folder)
    label = _label(one, names)
    if one.test is not None:
        test = table_of(one, one.test, folder)[1]
        drawn = [_usable(Split(names, label, _some(rows, most_rows, 1), _some(test, most_rows, 1)))]
    else:
        draws = 1 + (_MOST_DRAWS - 1) * (len(rows) < _ENOUGH_ROWS)
        drawn = [_drawn(names, label, rows, most_rows, seed) for seed in range(1, draws + 1)]
    return [split.without(one.leaks) for split in drawn]


def _drawn(names: Sequence[str], label: int, rows: list[Cells], most_rows: int, seed: int) -> Split:
    order = _some(rows, 2 * most_rows, seed)
    train: list[Cells] = []
    test: list[Cells] = []
    seen: dict[str, int] = {}
    for row in order:
        place = seen[row[label]] = seen.get(row[label], -1) + 1
        (test if place % 3 == 2 else train).append(row)
    return _usable(Split(names, label, train[:most_rows], test[:most_rows]))


def _some(rows: list[Cells], most: int, seed: int) -> list[Cells]:
    order = np.random.default_rng(seed).permutation(len(rows))[:most]
    return [rows[k] for k in order]


def _usable(split: Split) -> Split:
    """Without classes that cannot be learned or measured."""
    counts: dict[str, int] = {}
    for row in split.train:
        counts[row[split.label]] = counts.get(row[split.label], 0) + 1
    known = {name for name, count in counts.items() if count >= 3}
    parts = ([row for row in part if row[split.label] in known] for part in (split.train, split.test))
    return Split(split.names, split.label, *parts)
