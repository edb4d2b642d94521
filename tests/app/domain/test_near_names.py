"""Names that may be meant, and what there is instead."""

from __future__ import annotations

import pytest

from app.domain.near_names import known_names, listed, near_name, spellings


@pytest.mark.parametrize(
    ("name", "near"),
    [("Setosa", "setosa"), (" setosa", "setosa"), ("setsa", "setosa"), ("zebra", None), ("", None)],
)
def test_case_blanks_and_a_few_letters_are_near(name: str, near: str | None):
    assert near_name(name, ["virginica", "setosa"]) == near


def test_long_names_are_compared_by_case_only():
    assert near_name("A" * 400, ["a" * 400]) == "a" * 400
    assert near_name("b" + "a" * 399, ["a" * 400]) is None


def test_names_are_listed_in_bounded_number_and_length():
    assert listed(["a", "b"]) == "'a', 'b'"
    assert listed([str(i) for i in range(12)]).endswith("'9' and 2 more")
    assert len(listed(["x" * 400] * 1000)) < 800


def test_a_sentence_says_what_there_is_and_what_is_meant():
    assert known_names("A", ["a", "b"], "classes") == "it has 2 classes: 'a', 'b'. Is 'a' meant?"
    many = [str(i) for i in range(30)]
    assert known_names("x", many, "classes").endswith("'9' and 20 more.")
    assert known_names("x", many[:10], "classes", count=5000).endswith("'9' and 4990 more.")
    assert known_names("x", [], "aliases") == "it has 0 aliases."


def test_spellings_are_those_to_look_up():
    assert spellings(" setosa") == ["setosa", "SETOSA", "Setosa"]
