from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.domain import errors
from app.domain.entities import TRANSITIONS, JobState, new_id
from app.domain.spec import TrainingSpec


def test_identifiers_sort_by_the_time_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.5, 2_000_000_000.0])
    monkeypatch.setattr("time.time", lambda: next(times))
    made = [new_id("job") for _ in range(3)]
    assert made == sorted(made)
    assert all(len(name) == len("job_") + 24 for name in made)


def test_every_state_is_reached_and_ended_states_only_go_back_to_the_queue() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert set().union(*TRANSITIONS.values()) == set(JobState)
    for state in JobState:
        if state.ended:
            assert TRANSITIONS[state] <= {JobState.QUEUED}


def test_every_error_keeps_its_code_unless_told_another() -> None:
    for kind in (errors.NotFound, errors.Overloaded, errors.Unavailable, errors.InvalidRequest):
        assert kind("m").reason == kind.code
        assert kind("m", code="special").reason == "special"
    assert errors.Overloaded("m").retry_after > 0


def test_the_default_hyper_parameters_survive_json() -> None:
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
    ],
)
def test_hyper_parameters_out_of_bounds_are_named(change: dict[str, object], where: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingSpec.model_validate(change)
    assert [error["loc"] for error in caught.value.errors()] == [where]
