"""Events and choices of a training job as lines of text, for the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from app.domain.entities import Json
from app.domain.shown_figures import share


def describe_event(kind: str, data: Json) -> str | None:
    """An event as one line of text; None for events that only update the bar."""
    if (describe := _DESCRIPTIONS.get(kind)) is not None:
        return describe(data)
    match kind:
        case "stage_progress":
            return f"waiting: {data['waiting']}" if data.get("waiting") else None
        case "student_finished":
            f1 = f", F {share(data['f1'])}" if data.get("f1") is not None else ""
            return f"student {data.get('method')} of class {data.get('label')}: {_certificate(data)}{f1}"
        case "student_replaced":
            return (
                f"student of class {data.get('label')}: {data.get('replaced')} was clearly worse than its"
                f" teacher on held-out rows; one with several rejections takes its place, with F"
                f" {share(data.get('student_f1'))} (teacher {share(data.get('teacher_f1'))})"
            )
        case "student_warning":
            return f"warning, class {data.get('label')}: {data.get('message')}"
        case "student_failed":
            return f"student {data.get('method')} of class {data.get('label')} failed: {data.get('message')}"
        case "version_published":
            alias = f" as {data['alias']}" if data.get("alias") else ""
            return f"published {data.get('model')} version {data.get('version')}{alias}"
        case "test_rows_in_training":
            return f"{data['rows']} test rows stand in the training part, too: results on them are too good"
        case "job_failed":
            return f"job failed: {data.get('message')}"
        case _:
            return kind.replace("_", " ")


def test_part_text(part: Json) -> str:
    """Which rows students are measured on; part: the provenance ``test_part`` of a job."""
    rows = part["rows"]
    if part["source"] == "held_out":
        return f"measured on {rows} of {part['of']} labelled rows, which are held out of training"
    return f"measured on {rows} rows of {_TEST_PARTS[part['source']]}"


def threshold_text(metrics: Json) -> str | None:
    """By which rule the threshold of a student was chosen; None if its job did not store the rule."""
    rule = metrics.get("threshold_rule")
    if rule == "fpr":
        budget = metrics.get("false_positives", {}).get("budget")
        told = "few" if budget is None else f"at most {100 * budget:.4g} %"
        return f"{told} of the rows of other classes get a yes (fpr)"
    return None if rule is None else f"{_RULES[rule]} ({rule})"


def _stage_started(data: Json) -> str:
    seconds = data.get("expected_seconds")
    stage = str(data.get("stage"))
    what = f": {stage_text(stage)}" if stage in _STAGES else ""
    return f"stage {stage}{what}" + ("" if seconds is None else f", about {max(1.0, seconds):.0f} s")


def stage_text(stage: str) -> str:
    """What a job does in a stage."""
    return _STAGES.get(stage, stage)


def _alias_not_moved(data: Json) -> str:
    alias, present = data.get("alias"), data.get("version")
    if data.get("reason") == "too_many_aliases":
        return f"alias {alias} was not made: the model has its full number of aliases"
    if data.get("reason") == "gate":
        return f"alias {alias} stays at version {present}: {data['message']}"
    if data.get("reason") != "schema_change":
        now = "was deleted" if present is None else f"points to version {present}"
        return f"alias {alias} {now}: it was changed by hand after the job was submitted"
    shown = " ".join(change["message"] for change in data["changes"][:3])
    more = f" And {data['count'] - 3} more." if data["count"] > 3 else ""
    return (
        f"alias {alias} stays at version {present}: the new version refuses questions that"
        f" this one answers. {shown}{more}"
    )


def _labels_stored(data: Json) -> str:
    counts = ", ".join(f"{label} {count}" for label, count in data["class_counts"].items())
    return f"{data['labelled']} rows are labelled; of all {data['rows']} rows: {counts[:200]}"


def _teacher_finished(data: Json) -> str:
    features = {name: value for name, value in (data.get("features") or {}).items() if name != "reason"}
    chosen = f"; features: {point_text(features)}" if features else ""
    return f"teacher finished: {_certificate(data)}{chosen}"


def _setting_chosen(data: Json) -> str:
    if data.get("contest", {}).get("taken") == "automatic":
        return f"setting kept as automatic takes it: none of {data['tried']} candidates is clearly better"
    points = (f"; {name}: {point_text(point, ' ')}" for name, point in data["students"].items())
    return (
        f"setting chosen, the best of {data['tried']} candidates: teacher C {text(data['teacher_C'])}"
        + "".join(points)
    )


def _student_tuned(data: Json) -> str:
    if data.get("family"):
        second = data.get("second_family")
        rest = f"; the second family is {second}, {share(data.get('second_score'))}" if second else ""
        return (
            f"student of class {data.get('label')} is of the family {data['family']},"
            f" score {share(data.get('score'))}, the best of {data.get('points')} candidates{rest}"
        )
    point = f"{data['n_landmarks']} landmarks" if "n_landmarks" in data else point_text(data, " ")
    contest = data.get("contest")
    place = "the best" if contest is None or contest["taken"] == "search" else "one"
    return (
        f"student {data.get('method')} of class {data.get('label')} is tuned: {point},"
        f" score {share(data.get('score'))}, {place} of {data.get('points')} points" + _of_start(contest)
    )


def _of_start(contest: Json | None) -> str:
    """Whether a search kept the point that it started from, and why."""
    if contest is None:
        return ""
    did = "is left" if contest["taken"] == "search" else "is kept"
    return (
        f"; the start {did}: on {contest['rows']} rows that chose neither it has F"
        f" {share(contest['start_f1'])}, the best other point {share(contest['found_f1'])},"
        f" standard error {share(contest['standard_error'])}"
    )


def has_certificate(row: Mapping[str, Any]) -> bool:
    """Whether a solver iterated for a teacher or student: others have no objective, gap and iterations."""
    return bool(row.get("iterations")) or row.get("gap") is not None


def _certificate(data: Json) -> str:
    seconds = f"{text(data.get('seconds'))} s"
    if not has_certificate(data):
        return seconds
    return (
        f"objective {text(data.get('objective'))}, gap {text(data.get('gap'))},"
        f" {text(data.get('iterations'))} iterations, {seconds}"
    )


_MEASURES = frozenset(
    {
        "score",
        "standard_error",
        "full_score",
        "met",
        "metric",
        "strategy",
        "folds",
        "points",
        "gap",
        "seconds",
        "second_family",
        "second_score",
        "left_out",
        "contest",
        "least_score",
    }
)
_EVENT = frozenset({"at", "label", "class_index", "method"})


def point_text(chosen: Mapping[str, Any], separator: str = ", ") -> str:
    """The hyper-parameters of a choice, without its measures and the fields of an event around it."""
    point = {
        name: value
        for name, value in chosen.items()
        if name not in _MEASURES | _EVENT and (name, value) != ("rivals", 0)
    }
    texts = {
        name: f"{value:.4g}" if isinstance(value, int | float) else str(value)
        for name, value in point.items()
    }
    return separator.join(f"{name} {text}" for name, text in texts.items())


def text(value: object) -> str:
    """Text of a cell: numbers with four significant digits, missing values as a dash."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(text(item) for item in value) or "–"
    return str(value)


_STAGES: Final[Mapping[str, str]] = {
    "embed": "encoding the pictures",
    "encoders": "comparing encoders of pictures",
    "data": "reading the rows",
    "labels": "labelling rows that have no label",
    "choice": "comparing ways to scale the columns",
    "families": "comparing models on held-out rows",
    "setting": "searching hyper-parameters",
    "contest": "comparing the best of the search with the automatic choice",
    "features": "preparing the columns",
    "teacher": "training the model of all classes",
    "scores": "scoring the training rows",
    "tuning_teacher": "choosing the strength of regularisation",
    "student_kinds": "comparing kinds of yes/no models on held-out rows",
    "students": "training a small yes/no model for each class",
}
_TEST_PARTS: Final = {"data_set": "the data set's own test part", "other_data_set": "another data set"}
_RULES: Final = {
    "zero": "0, as the student was trained",
    "accuracy": "most answers on held-out rows are right",
    "f1": "F on held-out rows is largest",
    "expected_f1": "the expected F is largest, of a rare class often at a probability below 0.5",
    "shared": "one threshold for all classes, where their mean F on held-out rows is largest",
    "given": "given by hand",
    "max_false_positive_rate": "chosen on the curve for the rate of wrong yes answers that was asked for",
    "recall": "chosen on the curve for the recall that was asked for",
    "cost": "the cheapest on the curve for the costs of wrong answers that were given",
    "capacity": "chosen on the curve for how many yes answers people can look at",
}
_DESCRIPTIONS: Final[Mapping[str, Callable[[Json], str]]] = {
    "stage_started": _stage_started,
    "test_part": test_part_text,
    "labels_stored": _labels_stored,
    "teacher_finished": _teacher_finished,
    "setting_chosen": _setting_chosen,
    "student_tuned": _student_tuned,
    "alias_not_moved": _alias_not_moved,
}
