import pytest

from core.errors import InvalidProblem
from core.students.gated import GSVM, GSVM0, SVM
from core.students.grid import OPEN_GRID, PAPER_GRID, Grid
from tests.refusals import at_fault


def test_the_papers_grid_has_seven_by_sixteen_by_five_points():
    assert len(GSVM().grid("paper")) == 7 * 16 * 5
    assert len(GSVM0().grid("paper")) == 7 * 16
    assert len(SVM().grid("paper")) == 7
    assert (min(PAPER_GRID.C), max(PAPER_GRID.C)) == (1e-3, 1e3)
    assert (min(PAPER_GRID.margins), max(PAPER_GRID.margins)) == (0.0, 1.5)
    assert PAPER_GRID.floors == (0.1, 0.2, 0.3, 0.4, 0.5)


def test_the_open_grid_goes_on_to_a_million():
    assert max(OPEN_GRID.C) == 1e6


def test_a_method_gets_only_points_that_differ_for_it():
    grid = Grid(C=(1.0,), margins=(0.0, 1.0), floors=(0.1, 0.3))
    assert [spec.point for spec in SVM().grid(grid)] == [(1.0, 1.0, 1.0, 0.0)]
    assert [spec.point for spec in GSVM0().grid(grid)] == [(1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 1.0, 0.0)]
    assert len(GSVM().grid(grid)) == 4


def test_the_class_balance_is_the_students_unless_the_grid_has_values_of_it():
    assert {spec.balance for spec in GSVM(balance=0.5).grid("open")} == {0.5}
    balances = Grid(C=(1.0, 10.0), balances=(1.0, 0.0))
    assert [spec.point[::3] for spec in SVM(balance=0.5).grid(balances)] == [
        (1.0, 0.0),
        (1.0, 1.0),
        (10.0, 0.0),
        (10.0, 1.0),
    ]


def test_values_are_sorted_and_kept_once():
    assert Grid(C=(10, 1, 10)).C == (1.0, 10.0)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"C": (0.0,)}, "grid.C"),
        ({"C": ()}, "grid.C"),
        ({"C": (1.0,), "margins": (-0.1,)}, "grid.margins"),
        ({"C": (1.0,), "floors": (0.0,)}, "grid.floors"),
        ({"C": (1.0,), "balances": (1.1,)}, "grid.balances"),
        ({"C": tuple(range(1, 300))}, "grid.C"),
    ],
)
def test_values_out_of_bounds_are_refused_by_name(values, field):
    with pytest.raises(InvalidProblem) as caught:
        Grid(**values)
    assert field in {fault.field for fault in caught.value.faults}


def test_a_grid_of_too_many_points_is_refused():
    values = tuple(float(value) for value in range(1, 14))
    with at_fault(InvalidProblem, "too_many_points", match="2197 points"):
        Grid(C=values, margins=values, floors=tuple(value / 100 for value in values))


def test_fields_that_are_not_searched_keep_their_values():
    assert {spec.tolerance for spec in GSVM(tolerance=1e-5).grid("open")} == {1e-5}


@pytest.mark.parametrize("choice", ["fine", 3, None])
def test_an_unknown_grid_is_refused(choice):
    with at_fault(InvalidProblem, "no_grid", match="grid"):
        GSVM().grid(choice)
