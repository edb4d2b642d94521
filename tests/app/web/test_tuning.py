"""Pictures of searches: which points are where, what a cell shows, and which one is marked as chosen."""

from __future__ import annotations

import pytest

from app.web.charts import MAP_WIDTH
from app.web.tuning import drawn_search
from tests.app.web.conftest import GRID


def point(score: float, folds: int = 4, **params: float) -> dict[str, float]:
    return params | {"folds": folds, "score": score, "standard_error": 0.01, "gap": 0.0, "seconds": 0.1}


def test_a_grid_is_a_map_over_its_two_longest_axes():
    shown = drawn_search({"chosen": {"C": 100.0, "margin": 1.0, "score": 0.21}, "points": GRID})
    assert shown is not None
    assert shown["varied"] == ["C", "margin"]
    assert [text for _, text in shown["across"]] == ["1", "10", "100"]
    assert [text for _, text in shown["down"]] == ["0", "1"]
    assert len(shown["cells"]) == 6
    [chosen] = [cell for cell in shown["cells"] if cell.chosen]
    assert (chosen.x, chosen.y) == (pytest.approx(MAP_WIDTH * 2 / 3, abs=0.1), 0.0), "right, and at the top"
    assert chosen.shade == max(cell.shade for cell in shown["cells"])
    assert shown["best"][0]["score"] == max(one["score"] for one in GRID)


def test_a_cell_shows_the_best_of_the_points_that_were_measured_on_most_folds():
    points = [
        point(0.9, 1, C=1.0, margin=0.0, floor=0.0),
        point(0.6, 4, C=1.0, margin=0.0, floor=1.0),
        point(0.5, 4, C=1.0, margin=1.0, floor=0.0),
        point(0.4, 4, C=2.0, margin=0.0, floor=0.0),
    ]
    shown = drawn_search({"chosen": {"C": 1.0, "margin": 0.0, "floor": 1.0}, "points": points})
    assert shown is not None
    assert sorted(cell.score for cell in shown["cells"]) == ["0.400", "0.500", "0.600"]
    [chosen] = [cell for cell in shown["cells"] if cell.chosen]
    assert "0.6000 ± 0.0100 on 4 folds" in chosen.text


def test_a_large_grid_names_only_some_of_its_values():
    points = [point(C / 100, C=float(C), margin=float(m)) for C in range(30) for m in range(29)]
    shown = drawn_search({"chosen": {"C": 29.0, "margin": 0.0}, "points": points})
    assert shown is not None
    assert len(shown["cells"]) == 870
    assert [text for _, text in shown["across"]] == [str(C) for C in range(0, 30, 3)]
    assert len(shown["down"]) == 10
    assert len(shown["best"]) == 25


def test_one_axis_is_a_row_of_points_with_their_errors():
    points = [point(score, C=C) for C, score in ((1.0, 0.5), (10.0, 0.7), (100.0, 0.6))]
    shown = drawn_search({"chosen": {"C": 10.0}, "points": points})
    assert shown is not None
    marks = shown["line"]["marks"]
    assert [mark.name for mark in marks] == ["1", "10", "100"]
    assert [mark.chosen for mark in marks] == [False, True, False]
    assert all(mark.top < mark.y < mark.bottom for mark in marks)
    assert marks[1].y < marks[2].y < marks[0].y, "better points are higher"


def test_a_single_point_and_equal_scores_are_drawn_too():
    shown = drawn_search({"chosen": {"C": 1.0}, "points": [point(0.5, C=1.0)]})
    assert shown is not None
    assert len(shown["line"]["marks"]) == 1
    equal = [point(0.5, C=C, margin=m) for C in (1.0, 2.0) for m in (0.0, 1.0)]
    flat = drawn_search({"chosen": None, "points": equal})
    assert flat is not None
    assert len({cell.shade for cell in flat["cells"]}) == 1


def test_sizes_of_a_compact_student_rise_against_f_of_the_full_one():
    points = [{"n_landmarks": n, "f1": f1} for n, f1 in ((8, 0.5), (16, 0.7), (32, 0.79))]
    shown = drawn_search({"chosen": {"score": 0.79, "full_score": 0.8, "met": True}, "points": points})
    assert shown is not None
    assert shown["kind"] == "sizes"
    assert [mark.chosen for mark in shown["line"]["marks"]] == [False, False, True]
    assert shown["line"]["full"] == 0.0, "the full student is the best"


def test_families_are_listed_and_nothing_is_shown_without_a_search():
    points = [{"family": "odm", "params": {}, "f1": 0.5, "seconds": 1.0, "left_out": None}]
    shown = drawn_search({"chosen": {"family": "odm", "score": 0.5}, "points": points})
    assert shown is not None
    assert shown["kind"] == "families"
    assert drawn_search(None) is None
