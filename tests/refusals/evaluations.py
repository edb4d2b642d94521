"""Evaluations and gates that ask for too much, for what is not there, or by those who may not."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.refusals.refusal import Act, Answer, Header, Refusal, Server, get, post, refusals

_PATH: Final = "/v1/evaluations"
_GATE: Final = "/v1/models/pets/aliases/latest/gate"
_BAD_BODY: Final = (422, "invalid_body")
_DENIED: Final = (403, "scope_required")


def evaluations() -> list[Refusal]:
    """Bodies, ids and keys of evaluations."""

    def ask(key: str = "train", **changed: Any) -> Act:
        def act(server: Server) -> Answer:
            body = {"version": "pets@1", "dataset_id": server.dataset} | changed
            return post(_PATH, json.dumps(body).encode(), key=key)(server)

        return act

    return refusals(
        "evaluations",
        ("by one who may only ask", ask("query"), *_DENIED),
        ("a version without number", ask(version="pets@"), *_BAD_BODY),
        ("a version up", ask(version="../pets"), *_BAD_BODY),
        ("a version of another tenant by its name", ask(version="rival/pets"), *_BAD_BODY),
        ("a version that is none", ask(version="pets@77"), 404, "version_not_found"),
        ("a model that is none", ask(version="cats"), 404, "model_not_found"),
        ("an alias that is none", ask(baseline="pets@other"), 404, "alias_not_found"),
        ("a data set that is SQL", ask(dataset_id="' OR 1=1--"), *_BAD_BODY),
        ("a data set of 10 000 letters", ask(dataset_id="a" * 10_000), *_BAD_BODY),
        ("a data set of another tenant", ask("rival"), 404, "version_not_found"),
        ("a tolerance of 1", ask(tolerance=1), *_BAD_BODY),
        ("a tolerance that is infinite", ask(tolerance=1e999), 422, "invalid_body"),
        ("an alpha of 0", ask(alpha=0), *_BAD_BODY),
        ("a part that is none", ask(part="half"), *_BAD_BODY),
        ("a field that there is not", ask(classes=["cat"]), *_BAD_BODY),
        ("other columns", ask(), 422, "wrong_columns"),
        ("rows of training that are not known", _unknown_rows, 422, "training_rows_unknown"),
        ("a list from a version up", get(f"{_PATH}?version=..", key="train"), 400, "invalid_parameter"),
        ("an id that is SQL", get(f"{_PATH}/'%20OR%201=1--", key="train"), 404, "not_found"),
        ("an id that is none", get(f"{_PATH}/ev_none", key="train"), 404, "evaluation_not_found"),
        (
            "cancels one that is none",
            post(f"{_PATH}/ev_none/cancel", key="train"),
            404,
            "evaluation_not_found",
        ),
        (
            "deletes one that is none",
            post(f"{_PATH}/ev_none", method="DELETE", key="train"),
            404,
            "evaluation_not_found",
        ),
    )


def gates() -> list[Refusal]:
    """Bodies, conditions and keys of gates, and overrides."""

    def put(key: str = "admin", *headers: Header, target: str = _GATE, **changed: Any) -> Act:
        def act(server: Server) -> Answer:
            body = json.dumps({"dataset_id": server.dataset} | changed).encode()
            return post(target, body, *headers, method="PUT", key=key)(server)

        return act

    def override(reason: object, key: str = "train") -> Act:
        body = json.dumps({"version": 1, "override": reason}).encode()
        return post("/v1/models/pets/aliases/latest", body, (b"If-Match", b'"1"'), method="PUT", key=key)

    return refusals(
        "gates",
        ("set by one who trains", put("train"), *_DENIED),
        ("set by another tenant", put("rival"), 404, "alias_not_found"),
        ("of an alias that is none", put(target="/v1/models/pets/aliases/x/gate"), 404, "alias_not_found"),
        ("on a data set that is none", put(dataset_id="ds_none"), 404, "dataset_not_found"),
        ("by a rule that is none", put(rule="better"), *_BAD_BODY),
        ("with 49 rows", put(least_rows=49), *_BAD_BODY),
        ("with half a row", put(least_rows=50.5), *_BAD_BODY),
        ("with a field that there is not", put(shadow_hours=24), *_BAD_BODY),
        ("of another state", put("admin", (b"If-Match", b'"7"')), 412, "precondition_failed"),
        ("that there is not", get(_GATE), 404, "gate_not_found"),
        ("deleted without a condition", post(_GATE, method="DELETE", key="admin"), 428, "if_match_required"),
        ("deleted by one who trains", post(_GATE, method="DELETE", key="train"), *_DENIED),
        ("overridden by one who trains", override("because"), *_DENIED),
        ("overridden without a reason", override("", "admin"), *_BAD_BODY),
        ("overridden for a number", override(7, "admin"), *_BAD_BODY),
        ("overridden with a line end", override("a\nb", "admin"), *_BAD_BODY),
        ("overridden at length", override("a" * 201, "admin"), *_BAD_BODY),
    )


def _unknown_rows(server: Server) -> Answer:
    """A version that was published without the numbers of its rows, on a data set with its columns."""
    rows = "".join(f"{i},{i % 7},{i % 5},{'cat' if i % 2 else 'dog'}\n" for i in range(60))
    content = f"a,b,c,label\n{rows}".encode()
    made = post("/v1/datasets?format=csv", content, (b"Content-Type", b"text/csv"), key="train")(server)
    body = {"version": "pets", "dataset_id": made.document["id"]}
    return post(_PATH, json.dumps(body).encode(), key="train")(server)
