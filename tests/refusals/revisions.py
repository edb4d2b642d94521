"""Revisions of data sets that ask for too much, for what is not there, or by those who may not."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.refusals.refusal import DATASETS, Act, Answer, Refusal, Server, post, refusals

_BAD_BODY: Final = (422, "invalid_body")


def revisions() -> list[Refusal]:
    """Bodies, ids and keys of revisions."""

    def ask(key: str = "train", path: str | None = None, **body: Any) -> Act:
        def act(server: Server) -> Answer:
            target = f"{DATASETS}/{server.dataset if path is None else path}/revisions"
            return post(target, json.dumps(body).encode(), key=key)(server)

        return act

    def delete(*rows: Any, **more: Any) -> Act:
        return ask(**more, delete={"rows": [*rows]})

    return refusals(
        "revisions",
        ("by one who may only ask", delete(0, key="query"), 403, "scope_required"),
        ("of another tenant's data set", delete(0, key="rival"), 404, "dataset_not_found"),
        ("of a data set that is SQL", delete(0, path="'%20OR%201=1--"), 404, "not_found"),
        ("of a data set up", delete(0, path="..%2f..%2fkeys"), 404, "no_such_path"),
        ("nothing", ask(), 422, "empty_change"),
        ("no rows", delete(), *_BAD_BODY),
        ("row −1", delete(-1), *_BAD_BODY),
        ("row 10^30", delete(10**30), *_BAD_BODY),
        ("row 2^31 − 1", delete(2**31 - 1), 400, "unknown_row"),
        ("a half row", delete(0.5), *_BAD_BODY),
        ("row true", delete(True), *_BAD_BODY),
        ("100 001 rows", delete(*[0] * 100_001), *_BAD_BODY),
        ("appends what is none", ask(append_dataset_id="ds_none"), 404, "dataset_not_found"),
        ("appends a path", ask(append_dataset_id="../../stms.sqlite"), *_BAD_BODY),
        ("appends 10 000 letters", ask(append_dataset_id="a" * 10_000), *_BAD_BODY),
        ("a note of 501 letters", delete(0, note="a" * 501), *_BAD_BODY),
        ("a note that runs backwards", delete(0, note="\u202eetis"), *_BAD_BODY),
        ("a field that there is not", delete(0, labels=[]), *_BAD_BODY),
        ("a label of a row −1", ask(relabel=[{"row": -1, "label": "a"}]), *_BAD_BODY),
        ("a label of no row", ask(relabel=[{"label": "a"}]), *_BAD_BODY),
        ("a label of a row twice named", ask(relabel=[{"row": 0, "id": 0, "label": "a"}]), *_BAD_BODY),
        ("a label with a NUL", ask(relabel=[{"row": 0, "label": "a\0b"}]), *_BAD_BODY),
        ("a row that is both", delete(0, relabel=[{"row": 0, "label": "a"}]), 400, "given_twice"),
        ("an id that is none", ask(relabel=[{"id": 2**53, "label": "a"}]), 400, "unknown_row"),
        ("a subject without letters", ask(delete={"subjects": [""]}), *_BAD_BODY),
        ("a subject that has no rows", ask(delete={"subjects": ["nobody"]}), 422, "empty_change"),
        ("1001 subjects", ask(delete={"subjects": ["a"] * 1001}), *_BAD_BODY),
        (
            "the newest of what is none",
            ask(path="ds_none@latest", delete={"rows": [0]}),
            404,
            "dataset_not_found",
        ),
        ("another tenant's newest", ask("rival", delete={"rows": [0]}), 404, "dataset_not_found"),
        ("another name of a revision", ask(path="ds_1@first", delete={"rows": [0]}), 404, "not_found"),
    )


def subjects() -> list[Refusal]:
    """Subjects to erase that nobody can be, by those who may not."""

    def erase(name: str, key: str = "train") -> Act:
        return post(f"/v1/subjects/{name}", key=key, method="DELETE")

    return refusals(
        "subjects",
        ("by one who may only ask", erase("anna", "query"), 403, "scope_required"),
        ("a NUL", erase("a%00b"), 404, "not_found"),
        ("401 letters", erase("a" * 401), 404, "not_found"),
        ("a path", erase("..%2f..%2fkeys"), 404, "no_such_path"),
    )


def schedules() -> list[Refusal]:
    """Schedules that cannot be, and by those who may not set them."""

    def put(key: str = "train", model: str = "pets", **body: Any) -> Act:
        return post(f"/v1/models/{model}/schedule", json.dumps(body).encode(), key=key, method="PUT")

    return refusals(
        "schedules",
        ("by one who may only ask", put("query", every="daily"), 403, "scope_required"),
        ("of another tenant's model", put("rival", every="daily"), 404, "alias_not_found"),
        ("never", put(), *_BAD_BODY),
        ("each second", put(every="secondly"), *_BAD_BODY),
        ("after no rows", put(new_rows=0), *_BAD_BODY),
        ("after 10^30 rows", put(new_rows=10**30), *_BAD_BODY),
        ("promotes without an alias", put(every="daily", promote="if_gate_passes"), *_BAD_BODY),
        ("of a data set that is none", put(every="daily", dataset_id="ds_none"), 404, "dataset_not_found"),
        ("of an alias that is none", put(every="daily", base="other"), 404, "alias_not_found"),
        ("a field that there is not", put(every="daily", sudo=True), *_BAD_BODY),
    )
