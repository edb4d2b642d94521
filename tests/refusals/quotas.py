"""Changes of quotas that are no quotas or not allowed, and what a tenant may not do beyond its quotas."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.refusals.archives import safetensors
from tests.refusals.refusal import DATASETS, Act, Answer, Header, Refusal, Server, post, refusals

_QUOTAS: Final = "/v1/quotas"
_CSV_TYPE: Final[Header] = (b"Content-Type", b"text/csv")
_DENIED: Final = (403, "scope_required")
_BAD_BODY: Final = (422, "invalid_body")
_BAD_PARAMETER: Final = (400, "invalid_parameter")


def quotas() -> list[Refusal]:
    """Every refusal about quotas that one request after another shows."""

    def change(text: str, query: str = "?tenant=rival", key: str = "operator") -> Act:
        return post(_QUOTAS + query, text.encode(), method="PATCH", key=key)

    def value(text: str) -> Act:
        return change(f'{{"datasets": {text}}}')

    return refusals(
        "quotas",
        ("changes its own", change('{"datasets": 1000000}', "", "rival"), *_DENIED),
        ("changes another's", change('{"datasets": 0}', "?tenant=default", "rival"), *_DENIED),
        ("an administrator changes them", change('{"datasets": 1000000}', "", "admin"), *_DENIED),
        ("who trains, changes them", change('{"datasets": 1000000}', "", "other"), *_DENIED),
        ("-1", value("-1"), *_BAD_BODY),
        ("10^16", value("1" + "0" * 16), *_BAD_BODY),
        ("false", value("false"), *_BAD_BODY),
        ("-10^30", value("-1" + "0" * 30), *_BAD_BODY),
        ("10^30", value("1" + "0" * 30), *_BAD_BODY),
        ("2^63", value(str(2**63)), *_BAD_BODY),
        ("4301 digits", value("9" * 4301), 400, "malformed_json"),
        ("a half", value("0.5"), *_BAD_BODY),
        ("not a number", value("NaN"), *_BAD_BODY),
        ("infinity", value("Infinity"), *_BAD_BODY),
        ("1e400", value("1e400"), *_BAD_BODY),
        ("true", value("true"), *_BAD_BODY),
        ("text", value('"1000"'), *_BAD_BODY),
        ("a list", value("[1]"), *_BAD_BODY),
        ("a quota that is none", change('{"rate_limit": 1}'), *_BAD_BODY),
        ("a list of quotas", change('[{"datasets": 1}]'), *_BAD_BODY),
        ("of a tenant up", change('{"datasets": 1}', "?tenant=..%2fdefault"), *_BAD_PARAMETER),
        (
            "of a tenant of 10 000 letters",
            change('{"datasets": 1}', "?tenant=" + "a" * 10_000),
            *_BAD_PARAMETER,
        ),
        ("versions, one deleted", _deleted_version, 409, "quota_versions"),
    )


def upload(server: Server, key: str, number: int) -> Answer:
    """Upload a data set of some KB that depends on ``number``."""
    rows = "".join(f"{number}.{row},{row * row % 97},{'uv'[row % 2]}\n" for row in range(500))
    return post(f"{DATASETS}?format=csv", f"a,b,label\n{rows}".encode(), _CSV_TYPE, key=key)(server)


def import_head(server: Server, key: str, number: int) -> Answer:
    """Import a head that depends on ``number``, as a version of one model."""
    described = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    header = {"__metadata__": {"labels": '["a", "b"]'}, "weights": described}
    head = safetensors(header, np.full(4, number, np.float32).tobytes())
    return post("/v1/teachers?model=head", head, (b"Content-Type", b"application/octet-stream"), key=key)(
        server
    )


def _deleted_version(server: Server) -> Answer:
    """Delete a version and import two: the second is refused, and no number is used twice."""
    key = "one version"
    assert import_head(server, key, 0).status == 201
    conditions: dict[str, list[Header]] = {"aliases/latest": [(b"If-Match", b'"1"')], "versions/1": []}
    for target, condition in conditions.items():
        deleted = delete(server, key, f"/v1/models/head/{target}", *condition)
        assert deleted.status == 204, deleted.body
    assert import_head(server, key, 1).document["version"] == 2
    return import_head(server, key, 2)


def delete(server: Server, key: str, target: str, *headers: Header) -> Answer:
    return post(target, b"", *headers, key=key, method="DELETE")(server)
