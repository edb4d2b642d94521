from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import pytest
from pydantic import ValidationError

from app.domain import errors
from app.domain.entities import TRANSITIONS, JobState, new_id
from app.domain.fault_fields import sent_field
from app.domain.names import check_model_name
from app.domain.training_spec import TrainingSpec
from app.remote.errors import RemoteFailed
from app.services.training_plan import config_of, methods_of
from core.estimators import STMSClassifier
from core.learners import STUDENTS
from core.parameters import Doc, Ge, Le
from core.students.base import Student, StudentSpec
from core.students.gated import GSVM
from core.training.config import AUTOMATIC_STUDENT


def test_identifiers_sort_by_the_time_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.5, 2_000_000_000.0, 2_000_000_000.00001])
    monkeypatch.setattr("time.time", lambda: next(times))
    made = [new_id("job") for _ in range(4)]
    assert made == sorted(made)
    assert made[2].startswith("job_01d1a94a2000"), "milliseconds come first"
    assert all(len(name) == len("job_") + 24 for name in made)


def test_every_state_is_reached_and_ended_states_only_go_back_to_the_queue() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert set().union(*TRANSITIONS.values()) == set(JobState)
    for state in JobState:
        if state.ended:
            assert TRANSITIONS[state] <= {JobState.QUEUED}


def test_every_error_has_a_default_code() -> None:
    for kind in (errors.NotFound, errors.Overloaded, errors.Unavailable, errors.InvalidRequest):
        assert kind("m").reason == kind.code
        assert kind("m", code="special").reason == "special"
    assert errors.Overloaded("m").retry_after > 0


def test_the_default_hyperparameters_round_trip_through_json() -> None:
    spec = TrainingSpec()
    assert TrainingSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"student": {"C": 0}}, ("student", "C")),
        ({"student": {"difficulty_floor": 0}}, ("student", "difficulty_floor")),
        ({"student": {"method": "tree"}}, ("student", "method")),
        ({"teacher": {"tolerance": "nan"}}, ("teacher", "tolerance")),
        ({"features": {"n_components": 0}}, ("features", "n_components")),
        ({"features": {"bandwidth": 1}}, ("features", "bandwidth")),
        ({"evaluation": {"dataset_id": "ds", "test_fraction": 0.5}}, ("evaluation",)),
        ({"classes": []}, ("classes",)),
        ({"alias": "3"}, ("alias",)),
        ({"seed": -1}, ("seed",)),
        ({"features": {"scaling": "tfidf"}}, ("features", "scaling")),
        ({"compact": {"n_landmarks": 0}}, ("compact", "n_landmarks")),
        ({"compact": {"n_landmarks": 1001}}, ("compact", "n_landmarks")),
        ({"compact": {"relative_cost": 0}}, ("compact", "relative_cost")),
        ({"compact": {"relative_cost": 1.1}}, ("compact", "relative_cost")),
        ({"compact": {"max_f1_loss": -1}}, ("compact", "max_f1_loss")),
        ({"compact": {"max_f1_loss": 101}}, ("compact", "max_f1_loss")),
        ({"compact": {"n_landmarks": 10, "max_f1_loss": 1}}, ("compact",)),
        ({"compact": {}, "tuning": {}}, ()),
        ({"tuning": {"grid": "coarse"}}, ("tuning", "grid", "name")),
        ({"tuning": {"grid": 3}}, ("tuning", "grid", "values")),
        ({"tuning": {"grid": {"C": []}}}, ("tuning", "grid", "values", "C")),
        ({"tuning": {"grid": {"C": [1.0] * 51}}}, ("tuning", "grid", "values", "C")),
        ({"tuning": {"grid": {"C": ["one", 1.0]}}}, ("tuning", "grid", "values", "C", 0)),
        ({"tuning": {"grid": {"C": [0.5, 1e9]}}}, ("tuning", "grid", "values", "C", 1)),
        ({"tuning": {"grid": {"margins": [0.5, -0.1]}}}, ("tuning", "grid", "values", "margins", 1)),
        ({"tuning": {"grid": {"margins": [0.5, 101]}}}, ("tuning", "grid", "values", "margins", 1)),
        ({"tuning": {"grid": {"floors": [0.5, 0]}}}, ("tuning", "grid", "values", "floors", 1)),
        ({"tuning": {"grid": {"floors": [0.5, 1.5]}}}, ("tuning", "grid", "values", "floors", 1)),
        ({"tuning": {"grid": {"C": [1e-7, 1]}}}, ("tuning", "grid", "values", "C", 0)),
        ({"tuning": {"grid": {"D": [1]}}}, ("tuning", "grid", "values", "D")),
        ({"tuning": {"strategy": "random"}}, ("tuning", "strategy")),
        ({"tuning": {"folds": 1}}, ("tuning", "folds")),
        ({"tuning": {"folds": 21}}, ("tuning", "folds")),
        ({"tuning": {"metric": "recall"}}, ("tuning", "metric")),
        ({"calibration": {"kind": "platt"}}, ("calibration", "kind")),
    ],
)
def test_hyperparameters_out_of_bounds_are_named(change: dict[str, object], where: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingSpec.model_validate(change)
    assert [error["loc"] for error in caught.value.errors()] == [where]


@pytest.mark.parametrize(
    "change",
    [
        {"compact": {"n_landmarks": 1}},
        {"compact": {"n_landmarks": 1000}},
        {"compact": {"relative_cost": 1}},
        {"compact": {"max_f1_loss": 0}},
        {"compact": {"max_f1_loss": 100}},
        {"tuning": {"folds": 2, "strategy": "exhaustive", "metric": "accuracy"}},
        {"tuning": {"folds": 20, "grid": "open", "metric": "auc"}},
        {"tuning": {"grid": {"C": [1e-6, 1e8], "margins": [0, 100], "floors": [1e-9, 1]}}},
        {"tuning": {"grid": {"C": [1.0] * 50}}},
        {"calibration": {"kind": "isotonic"}},
        {"features": {"scaling": "idf"}},
    ],
)
def test_hyperparameters_at_their_bounds_are_accepted_by_core(change: dict[str, object]) -> None:
    config_of(TrainingSpec.model_validate(change))


def test_a_grid_is_bounded_as_a_whole() -> None:
    values = [float(value) for value in range(1, 14)]
    grid = {"C": values, "margins": values, "floors": [value / 100 for value in values]}
    with pytest.raises(ValidationError, match="the grid has 2197 points, more than 2000"):
        TrainingSpec.model_validate({"tuning": {"grid": grid}})
    fewer = grid | {"floors": [0.1, 0.1, 0.2]}
    spec = TrainingSpec.model_validate({"tuning": {"grid": fewer}})
    assert TrainingSpec.model_validate_json(spec.model_dump_json()) == spec


def test_compact_students_answer_queries_if_there_are_any() -> None:
    assert TrainingSpec().served_method == "automatic"
    assert TrainingSpec(automatic=False).served_method == "gsvm"
    assert (
        TrainingSpec.model_validate({"compact": {}, "student": {"method": "svm"}}).served_method == "compact"
    )
    both = {"compact": {}, "tuning": {}, "evaluation": {"baselines": ["gsvm"]}}
    assert methods_of(TrainingSpec.model_validate(both)) == ("compact", "gsvm")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.Conflict, "conflict"),
        (errors.NotAuthenticated, "not_authenticated"),
        (errors.NotAuthorised, "not_authorised"),
        (errors.PreconditionRequired, "precondition_required"),
        (errors.Unprocessable, "unprocessable"),
        (RemoteFailed, "remote_failed"),
    ],
)
def test_an_error_without_a_code_has_that_of_its_kind(kind: type[errors.ServiceError], code: str) -> None:
    assert kind("It failed.").reason == code
    assert kind("It failed.", code="failed").reason == "failed"


def test_names_of_models_are_checked() -> None:
    for name in ("", "-a", "a b", "a/b", "x" * 101):
        with pytest.raises(errors.InvalidRequest) as caught:
            check_model_name(name)
        assert [caught.value.reason, caught.value.faults[0].code] == ["invalid_name"] * 2
    check_model_name("x" * 100)


@dataclass(frozen=True)
class Toy(StudentSpec):
    """A student of this test."""

    name: ClassVar[str] = "toy"
    C: Annotated[float, Ge(1e-6), Le(10), Doc("Loss weight.")] = 2.0
    depth: Annotated[int, Ge(1), Le(9), Doc("How deep.")] = 3

    def fit(self, problem: object, run: object) -> Student:
        raise NotImplementedError


def test_a_student_that_is_registered_later_is_read_written_and_described() -> None:
    with pytest.raises(ValidationError, match=r"Input should be 'gsvm', .* or "):
        TrainingSpec.model_validate({"student": {"method": "toy"}})
    with STUDENTS.registered(Toy):
        spec = TrainingSpec.model_validate({"student": {"method": "toy", "depth": 5}})
        assert spec.student == Toy(depth=5)
        assert TrainingSpec.model_validate_json(spec.model_dump_json()) == spec
        schema = TrainingSpec.model_json_schema()["$defs"]["ToyStudentParameters"]["properties"]
        assert schema["depth"] == {
            "default": 3,
            "description": "How deep.",
            "maximum": 9,
            "minimum": 1,
            "title": "Depth",
            "type": "integer",
        }
        with pytest.raises(ValidationError) as caught:
            TrainingSpec.model_validate({"student": {"method": "toy", "depth": 10}})
        assert [error["loc"] for error in caught.value.errors()] == [("student", "depth")]
    assert "ToyStudentParameters" not in TrainingSpec.model_json_schema()["$defs"]


def test_a_baseline_takes_the_hyper_parameters_that_it_shares_with_the_student() -> None:
    with STUDENTS.registered(Toy):
        shared = {"student": {"C": 5}, "evaluation": {"baselines": ["toy", "svm", "gsvm"]}}
        student, toy, svm = TrainingSpec.model_validate(shared).students
        assert (student.name, toy, svm.name) == ("gsvm", Toy(C=5), "svm")
        # Beyond the bounds of the baseline its own default is taken.
        far = {"student": {"C": 500}, "evaluation": {"baselines": ["toy"]}}
        assert TrainingSpec.model_validate(far).students[1] == Toy(C=2.0)


def test_the_guard_repairs_only_students_that_were_left_open() -> None:
    assert TrainingSpec().guard.kind == TrainingSpec(automatic=False).guard.kind == "repair"
    assert TrainingSpec.model_validate({"student": {"C": 10.0}}).guard.kind == "check"
    assert TrainingSpec.model_validate({"student": {}, "guard": {"kind": "repair"}}).guard.kind == "repair"


def test_automatic_settles_what_was_left_open_and_keeps_what_was_given() -> None:
    spec = TrainingSpec.model_validate({"automatic": True})
    assert (spec.student.name, spec.student.params()["pieces"]) == ("automatic", 8)
    assert (spec.calibration.kind, spec.threshold.folds, spec.guard.kind) == ("sigmoid", 3, "repair")
    assert spec.threshold.rule == "expected_f1"
    given = {"automatic": True, "student": {"method": "gsvm"}, "threshold": {"rule": "f1"}}
    spec = TrainingSpec.model_validate(given)
    assert (spec.student.name, spec.threshold.rule, spec.threshold.folds) == ("gsvm", "f1", 5)
    assert TrainingSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_an_automatic_job_may_have_a_budget_of_seconds() -> None:
    spec = TrainingSpec.model_validate({"automatic": {"seconds": 30}})
    assert (spec.student, spec.automatic_seconds) == (AUTOMATIC_STUDENT, 30.0)
    assert (config_of(spec).automatic, config_of(spec).automatic_seconds) == (True, 30.0)
    assert TrainingSpec.model_validate(spec.model_dump(mode="json")) == spec
    plain = TrainingSpec.model_validate({"automatic": {}})
    assert config_of(plain) == config_of(TrainingSpec())


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"automatic": {"seconds": 0.5}}, "automatic.seconds", "greater than or equal to 1"),
        ({"automatic": {"seconds": 1e6}}, "automatic.seconds", "less than or equal to 86400"),
        ({"automatic": {"minutes": 1}}, "automatic.minutes", "not permitted"),
        ({"automatic": 30}, "automatic", "valid boolean"),
        ({"automatic": {"seconds": 9}, "tuning": {}}, "", "budget for jobs that leave"),
        ({"automatic": {"seconds": 9}, "student": {"method": "gsvm"}}, "", "budget for jobs that leave"),
        ({"automatic": {"seconds": 9}, "teacher": {"method": "forest"}}, "", "budget for jobs that leave"),
        ({"automatic": {"seconds": 9}, "evaluation": {"baselines": ["svm"]}}, "", "budget for jobs that"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(given: dict[str, object], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingSpec.model_validate(given)
    (fault,) = caught.value.errors()
    assert ".".join(map(str, sent_field(fault["loc"], fault["type"], given))) == field
    assert message in fault["msg"]


@pytest.mark.parametrize(
    ("location", "kind", "value", "field"),
    [
        (("a", "form", "b"), "too_small", {"a": {"b": 0}}, ("a", "b")),
        (("a", "form", "b"), "missing", {"a": {}}, ("a", "b")),
        (("a", "form"), "value_error", {"a": {}}, ("a",)),
        (("a", "form", 1, "b"), "extra_forbidden", {"a": [{}, {"b": 1}]}, ("a", 1, "b")),
        (("a", 3), "missing", {"a": [1]}, ("a", 3)),
        (("form",), "wrong_type", None, ()),
    ],
)
def test_the_name_of_a_form_is_no_part_of_a_field(
    location: tuple[str | int, ...], kind: str, value: object, field: tuple[str | int, ...]
) -> None:
    assert sent_field(location, kind, value) == field


def test_of_teacher_and_students_that_are_trees_one_follows_the_other() -> None:
    spec = TrainingSpec.model_validate({"teacher": {"method": "boosting"}})
    assert (spec.student.name, spec.automatic, spec.calibration.kind) == ("trees", False, "sigmoid")
    assert spec.threshold.rule == "expected_f1"
    assert TrainingSpec.model_validate(spec.model_dump(mode="json")) == spec
    spec = TrainingSpec.model_validate(
        {"student": {"method": "trees", "rivals": 1}, "threshold": {"rule": "f1"}}
    )
    assert (spec.teacher.spec.name, spec.threshold.rule) == ("forest", "f1")
    distilled = TrainingSpec.model_validate({"teacher": {"method": "forest"}, "student": {"method": "gsvm"}})
    assert (distilled.student.name, distilled.threshold.rule) == ("gsvm", "zero")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"teacher": {"method": "ssvm"}, "student": {"method": "trees"}}, "needs a teacher of trees"),
        ({"teacher": {"model": "head"}, "student": {"method": "trees"}}, "needs a teacher of trees"),
        ({"student": {"method": "trees"}, "tuning": {}}, "tuning has nothing to do: trees"),
    ],
)
def test_trees_that_cannot_be_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingSpec.model_validate(given)


@pytest.mark.parametrize(
    ("given", "automatic"),
    [
        ({}, True),
        ({"automatic": None}, True),
        ({"compact": None, "tuning": None}, True),
        ({"threshold": {"rule": "f1"}, "evaluation": {"baselines": ["svm"]}, "seed": 3}, True),
        ({"automatic": False}, False),
        ({"features": {"kind": "linear"}}, False),
        ({"teacher": {"C": 1}}, False),
        ({"student": {}}, False),
        ({"compact": {}}, False),
        ({"tuning": {}}, False),
        ({"automatic": True, "student": {"C": 1}}, True),
    ],
)
def test_a_job_is_automatic_unless_it_names_features_or_a_learner(given: dict, automatic: bool) -> None:
    spec = TrainingSpec.model_validate(given)
    assert spec.automatic is automatic
    assert TrainingSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_the_estimator_without_parameters_is_the_job_without_hyperparameters() -> None:
    assert STMSClassifier()._config() == config_of(TrainingSpec())
    plain = TrainingSpec.model_validate({"automatic": False, "calibration": {"kind": "sigmoid"}})
    assert STMSClassifier(automatic=False)._config() == replace(config_of(plain), guard="off", folds=3)


def test_a_search_for_everything_begins_with_the_students_of_automatic_unless_the_job_names_others() -> None:
    spec = TrainingSpec.model_validate({"tuning": {"scope": "job"}})
    assert (spec.automatic, spec.student) == (False, AUTOMATIC_STUDENT)
    assert (spec.calibration.kind, spec.threshold.folds) == ("sigmoid", 3)
    assert TrainingSpec.model_validate(spec.model_dump(mode="json")) == spec
    named = TrainingSpec.model_validate({"tuning": {"scope": "job"}, "student": {"method": "gsvm"}})
    assert named.student == GSVM()
    with pytest.raises(ValidationError, match="tuning of scope job chooses the features"):
        TrainingSpec.model_validate({"tuning": {"scope": "job"}, "teacher": {"model": "faces@1"}})


def test_automatic_is_refused_beside_an_imported_head() -> None:
    with pytest.raises(ValidationError, match="automatic chooses the features"):
        TrainingSpec.model_validate({"automatic": True, "teacher": {"model": "faces@1"}})
