"""Privileged columns, views and scores of a teacher: what is accepted, what is refused, what follows rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.data.digest import data_digest
from core.data.extras import MAX_VIEWS, RawExtras, View
from core.errors import InvalidProblem
from core.features.examples import Examples

X = np.arange(18.0).reshape(6, 3)
LABELS = ["b", "a", "b", "a", "c", "c"]
PRIVILEGED = np.linspace(0.0, 1.0, 12).reshape(6, 2)
SCORES = np.arange(18.0).reshape(6, 3)[:, ::-1].copy()


def labelled(**values) -> LabelledData:
    return LabelledData.from_arrays(X, LABELS, extras=RawExtras(**values))


def faults_of(**values):
    with pytest.raises(InvalidProblem) as caught:
        labelled(**values)
    return caught.value.faults


def changed(table, row, column, value):
    other = table.copy()
    other[row, column] = value
    return other


class TestAccepted:
    def test_without_extras_there_are_none(self):
        data = LabelledData.from_arrays(X, LABELS)

        assert data.privileged is None
        assert data.views == ()
        assert data.teacher_scores is None
        assert data.extras.offers == frozenset()

    def test_views_are_kept_in_the_order_of_their_columns(self):
        data = labelled(views=[("sound", 2, 3), ("image", 0, 2)])

        assert data.views == (View("image", 0, 2), View("sound", 2, 3))
        np.testing.assert_array_equal(data.X[:, data.views[0].columns], X[:, :2])

    def test_scores_go_to_the_order_of_the_classes(self):
        data = labelled(teacher_scores=SCORES, score_classes=["c", "a", "b"])

        assert data.classes == ("a", "b", "c")
        np.testing.assert_array_equal(data.teacher_scores, SCORES[:, [1, 2, 0]])

    def test_scores_without_names_are_in_the_order_of_the_classes(self):
        np.testing.assert_array_equal(labelled(teacher_scores=SCORES).teacher_scores, SCORES)

    def test_rows_take_their_extras_along(self):
        data = labelled(privileged=PRIVILEGED, teacher_scores=SCORES, views=[("all", 0, 3)])
        part = data.take(np.array([4, 0]))

        np.testing.assert_array_equal(part.privileged, PRIVILEGED[[4, 0]])
        np.testing.assert_array_equal(part.teacher_scores, SCORES[[4, 0]])
        assert part.views == data.views

    def test_examples_take_their_extras_along_also_twice(self):
        data = labelled(privileged=PRIVILEGED, views=[("all", 0, 3)])
        examples = Examples(data.X, data.X, all_extras=data.extras)
        part = examples.take(np.array([5, 3, 1])).take(np.array([2, 0]))

        np.testing.assert_array_equal(examples.privileged, PRIVILEGED)
        np.testing.assert_array_equal(part.privileged, PRIVILEGED[[1, 5]])
        assert part.views == data.views

    def test_examples_without_extras_have_none(self):
        examples = Examples.of_features(X).take(np.array([0]))

        assert examples.privileged is None
        assert examples.views == ()

    def test_every_extra_is_part_of_the_digest_of_the_data(self):
        plain = LabelledData.from_arrays(X, LABELS)
        data = labelled(privileged=PRIVILEGED, teacher_scores=SCORES, views=[("all", 0, 3)])
        extras = data.extras
        others = [
            data,
            replace(data, extras=replace(extras, privileged=changed(PRIVILEGED, 2, 1, 9.0))),
            replace(data, extras=replace(extras, teacher_scores=changed(SCORES, 0, 0, 9.0))),
            replace(data, extras=replace(extras, views=(View("all", 0, 2),))),
            plain,
        ]

        assert len({data_digest(one) for one in others}) == len(others)


class TestRefused:
    @pytest.mark.parametrize("field", ["privileged", "teacher_scores"])
    @pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
    def test_unusable_numbers_by_row_and_column(self, field, value):
        [fault] = faults_of(**{field: changed(SCORES, 3, 1, value)})

        assert (fault.field, fault.row, fault.column) == (field, 3, 1)
        assert fault.code == ("too_large" if value == 1e200 else "not_finite")

    @pytest.mark.parametrize("field", ["privileged", "teacher_scores"])
    def test_another_number_of_rows(self, field):
        faults = faults_of(**{field: SCORES[:5]})

        assert (faults[0].field, faults[0].code) == (field, "wrong_length")

    @pytest.mark.parametrize(
        ("values", "field", "code"),
        [
            ({"privileged": [["x"]] * 6}, "privileged", "not_numeric"),
            ({"privileged": PRIVILEGED[:, 0]}, "privileged", "wrong_shape"),
            ({"privileged": PRIVILEGED[:, :0]}, "privileged", "no_columns"),
            ({"privileged": PRIVILEGED, "privileged_names": ["p"]}, "privileged_names", "wrong_length"),
            ({"privileged": PRIVILEGED, "privileged_names": ["p", "p"]}, "privileged_names", "duplicate"),
            ({"privileged": PRIVILEGED, "privileged_names": ["p", " "]}, "privileged_names", "bad_name"),
            ({"privileged": PRIVILEGED, "privileged_names": ["p", "\x07"]}, "privileged_names", "bad_name"),
            (
                {"privileged": PRIVILEGED, "privileged_names": ["p", "q" * 257]},
                "privileged_names",
                "bad_name",
            ),
            ({"privileged_names": ["p"]}, "privileged_names", "wrong_length"),
            ({"views": [("v", 0, 4)]}, "views", "out_of_bounds"),
            ({"views": [("v", -1, 2)]}, "views", "out_of_bounds"),
            ({"views": [("v", 2, 2)]}, "views", "out_of_bounds"),
            ({"views": [("v", 0.5, 2)]}, "views", "out_of_bounds"),
            ({"views": [("v", 0, 1), ("v", 1, 2)]}, "views", "duplicate"),
            ({"views": [("", 0, 1)]}, "views", "bad_name"),
            ({"views": [("v", 0, 2), ("w", 1, 3)]}, "views", "overlapping"),
            ({"views": [(str(k), 0, 1) for k in range(MAX_VIEWS + 1)]}, "views", "too_many"),
            ({"teacher_scores": SCORES[:, :2]}, "teacher_scores", "wrong_columns"),
            (
                {"teacher_scores": SCORES, "score_classes": ["a", "b", "x"]},
                "teacher_scores",
                "unknown_class",
            ),
            ({"teacher_scores": SCORES, "score_classes": ["a", "b"]}, "teacher_scores", "wrong_columns"),
            ({"teacher_scores": SCORES, "score_classes": ["a", "b", "b"]}, "teacher_scores", "duplicate"),
            (
                {"teacher_scores": SCORES[:, :2], "score_classes": ["a", "b"]},
                "teacher_scores",
                "missing_class",
            ),
        ],
    )
    def test_by_field(self, values, field, code):
        assert (field, code) in {(fault.field, fault.code) for fault in faults_of(**values)}

    def test_faults_of_several_extras_together(self):
        faults = faults_of(
            privileged=changed(PRIVILEGED, 1, 0, np.nan), views=[("v", 0, 9)], teacher_scores=SCORES[:, :2]
        )

        assert [fault.field for fault in faults] == ["privileged", "views", "teacher_scores"]
