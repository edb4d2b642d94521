import pytest

from core.errors import InvalidProblem
from core.model_selection.grid import OPEN_GRID, PAPER_GRID, Grid, Point


def test_the_papers_grid_has_seven_by_sixteen_by_five_points():
    assert len(PAPER_GRID.points("gsvm")) == 7 * 16 * 5
    assert len(PAPER_GRID.points("gsvm0")) == 7 * 16
    assert len(PAPER_GRID.points("svm")) == 7
    assert (min(PAPER_GRID.C), max(PAPER_GRID.C)) == (1e-3, 1e3)
    assert (min(PAPER_GRID.margins), max(PAPER_GRID.margins)) == (0.0, 1.5)
    assert PAPER_GRID.floors == (0.1, 0.2, 0.3, 0.4, 0.5)


def test_the_open_grid_goes_on_to_a_million():
    assert max(OPEN_GRID.C) == 1e6


def test_a_method_gets_only_points_that_differ_for_it():
    grid = Grid(C=(1.0,), margins=(0.0, 1.0), floors=(0.1, 0.3))
    assert grid.points("svm") == (Point(1.0, 1.0, 1.0),)
    assert grid.points("gsvm0") == (Point(1.0, 0.0, 1.0), Point(1.0, 1.0, 1.0))
    assert len(grid.points("gsvm")) == 4


def test_values_are_sorted_and_kept_once():
    assert Grid(C=(10, 1, 10)).C == (1.0, 10.0)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"C": (0.0,)}, "grid.C"),
        ({"C": ()}, "grid.C"),
        ({"C": (1.0,), "margins": (-0.1,)}, "grid.margins"),
        ({"C": (1.0,), "floors": (0.0,)}, "grid.floors"),
        ({"C": tuple(range(1, 300))}, "grid.C"),
    ],
)
def test_values_out_of_bounds_are_refused_by_name(values, field):
    with pytest.raises(InvalidProblem) as caught:
        Grid(**values)
    assert field in {fault.field for fault in caught.value.faults}


def test_an_unknown_method_is_refused():
    with pytest.raises(InvalidProblem, match="method"):
        PAPER_GRID.points("boosting")
