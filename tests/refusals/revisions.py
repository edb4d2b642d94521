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
        ("a field that there is not", delete(0, relabel=[]), *_BAD_BODY),
    )
