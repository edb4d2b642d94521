"""The benchmark of compact students: its own data, and the figures of its last line."""

from __future__ import annotations

from benchmarks.compact import headline, wide


def test_the_wide_set_has_the_shape_that_is_told_and_is_the_same_every_time():
    data, test = wide()
    assert data.X.shape == test.X.shape == (1040, 617)
    assert len(data.classes) == 26
    assert (wide()[0].X == data.X).all()


def test_the_headline_has_the_figures_of_the_sets_that_were_measured():
    letter = {"100": {"training_seconds": 5.0, "f1": 97.1}}
    assert headline({"letter": letter}) == {"compact_letter_s": 5.0, "compact_letter_f1": 97.1}
    assert headline({"wide": letter}) == {"compact_wide_s": 5.0}
