"""Further ways of `lab.verification.crowds`: floods without a key, costly bodies, slow connections.

``python -m lab.verification.limits.ways WAY`` with a target on stdin.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from lab.verification.crowds import Crowd, Work, main

MODULE: Final = "lab.verification.limits.ways"
Way = Callable[[Crowd], Work]

_KEYLESS_CONNECTIONS: Final = 40
_BODY_CONNECTIONS: Final = 8
_SLOW_BODIES: Final = 16
"""Slow bodies of one key: as many as a key may have requests in progress."""
_JSON: Final = "application/json"
_JOBS: Final = "/v1/training-jobs"
_WRONG_KEY: Final = "stms_key_" + "0" * 24 + "_" + "A" * 43
_MIB: Final = 1024**2
_ROWS_OF_20_MB: Final = 170_000

_PATHS: Final = {
    "openapi": ("GET", "/openapi.json"),
    "metrics_with_query": ("GET", "/metrics?x"),
    "delete_readyz": ("DELETE", "/readyz"),
    "sign_in_page": ("GET", "/ui/sign-in?next=%2Fui%2F"),
    "readyz": ("GET", "/readyz"),
    "no_such_path": ("GET", "/v1/there/is/no/such/path"),
    "api_without_key": ("GET", "/v1/models"),
    "version": ("GET", "/version"),
    "docs_script": ("GET", "/docs/swagger-ui-bundle.js"),
    "docs": ("GET", "/docs"),
    "docs_start": ("GET", "/docs/start.js"),
    "docs_style": ("GET", "/docs/swagger-ui.css"),
    "metrics": ("GET", "/metrics"),
    "livez": ("GET", "/livez"),
    "readyz_verbose": ("GET", "/readyz?verbose"),
    "v2": ("GET", "/v2"),
    "v2_live": ("GET", "/v2/health/live"),
    "v2_ready": ("GET", "/v2/health/ready"),
    "delete_v2": ("DELETE", "/v2/models/m/versions/1/ready"),
    "front_page": ("GET", "/"),
    "no_such_page": ("GET", "/ui/none"),
    "jobs_without_key": ("GET", "/v1/training-jobs?limit=1000"),
}


def _path(method: str, path: str) -> Way:
    return lambda crowd: [crowd.flood(_KEYLESS_CONNECTIONS, 0.0, method, path, None)]


def _wrong_keys(crowd: Crowd) -> Work:
    body = b'{"dataset_id": "ds_none", "model": "m"}'
    return [
        crowd.flood(_KEYLESS_CONNECTIONS, 0.0, "POST", _JOBS, _WRONG_KEY, body, Content_Type=_JSON),
    ]


def _made_up_sessions(crowd: Crowd) -> Work:
    """Pages with session cookies of which no two are alike."""

    def request() -> bytes:
        cookie = f"stms_session=ses_{secrets.token_hex(12)}_{secrets.token_urlsafe(32)}"
        return crowd.head("GET", "/ui/jobs", None, 0, {"Cookie": cookie})

    return [crowd.requests(_KEYLESS_CONNECTIONS, 0.0, request)]


KEYLESS: Final[Mapping[str, Way]] = {
    "made_up_sessions": _made_up_sessions,
    "wrong_keys": _wrong_keys,
    **{name: _path(method, path) for name, (method, path) in _PATHS.items()},
}
"""Floods that need no key, of every public path; the ones that cost most come first."""


def _bodies(make: Callable[[Crowd], bytes], path: str = _JOBS, *, trains: bool = True) -> Way:
    """Requests of one key with a large body. trains: whether the key has the scope train, or only query."""

    def work(crowd: Crowd) -> Work:
        key = crowd.target.key if trains else crowd.target.keys[0]
        return [crowd.flood(_BODY_CONNECTIONS, 0.0, "POST", path, key, make(crowd), Content_Type=_JSON)]

    return work


_LARGEST_JOB: Final = 256 * 1024 - 1000
"""Bytes of a list in the body of a job, which may have 256 KiB."""


def _list_of(item: bytes, size: int = _MIB - 1000) -> bytes:
    """A JSON list that repeats an item up to ``size`` bytes."""
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def _job(hyperparameters: bytes) -> Callable[[Crowd], bytes]:
    def body(crowd: Crowd) -> bytes:
        start = json.dumps({"dataset_id": crowd.target.dataset, "model": "m"})[:-1].encode()
        return start + b', "hyperparameters": ' + hyperparameters + b"}"

    return body


def _corrections(_crowd: Crowd) -> bytes:
    rows = [{"row": row, "label": "0"} for row in range(30_000)]
    return json.dumps({"corrections": rows}, separators=(",", ":")).encode()


BODIES: Final[Mapping[str, Way]] = {
    "objects_of_query_key": _bodies(lambda _: _list_of(b"{}"), trains=False),
    "integers_of_query_key": _bodies(lambda _: _list_of(b"9" * 4000), trains=False),
    "unknown_classes": _bodies(_job(b'{"classes": ' + _list_of(b'"zz"', _LARGEST_JOB) + b"}")),
    "corrections": _bodies(_corrections, f"{_JOBS}/job_none/labels"),
    "integers": _bodies(_job(b'{"seed": ' + _list_of(b"9" * 4000, _LARGEST_JOB) + b"}")),
    "deep_nesting": _bodies(_job(b"[" * 120_000 + b"]" * 120_000)),
    "many_faults": _bodies(_job(b'{"classes": ' + _list_of(b"1", _LARGEST_JOB) + b"}")),
    "unknown_fields": _bodies(
        _job(b"{" + b",".join(b'"f%06d": 1' % number for number in range(19_000)) + b"}")
    ),
    "thresholds": _bodies(
        lambda _: (
            b'{"thresholds": {' + b",".join(b'"c%06d": 0.5' % number for number in range(15_000)) + b"}}"
        ),
        "/v1/models/own/versions",
    ),
}
"""Bodies as large as may be: of a key that may not send them, and of one that may."""


def _refused_requests(crowd: Crowd) -> Work:
    """A cheap request without its scope."""
    key = crowd.target.keys[0]
    return [crowd.flood(_KEYLESS_CONNECTIONS, 0.0, "POST", _JOBS, key, b"{}", Content_Type=_JSON)]


def _answered_requests(crowd: Crowd) -> Work:
    """A cheap request that is answered."""
    return [crowd.flood(_KEYLESS_CONNECTIONS, 0.0, "GET", "/v1/whoami", crowd.target.key)]


def _slow_bodies_of_keys(crowd: Crowd) -> Work:
    return [crowd.slow_bodies(_SLOW_BODIES, _JOBS, key, _JSON) for key in crowd.target.keys]


def _connections_of_keys(crowd: Crowd) -> Work:
    """A quarter of `STMS_MAX_CONNECTIONS` of `stalls` for each of four keys."""
    return [crowd.kept(50, "/v1/whoami", key) for key in crowd.target.keys]


def _failing_uploads(crowd: Crowd) -> Work:
    row = b",".join(b"%d" % number for number in range(40))
    header = b",".join(b"c%d" % number for number in range(40)) + b",label\n"
    rows = (row + b",a\n" + row + b",b\n") * (_ROWS_OF_20_MB // 2)
    body = header + rows + row[:-2] + b"x,a\n"
    path = "/v1/datasets?format=csv&name=fails"
    return [crowd.flood(8, 0.0, "POST", path, crowd.target.key, body, Content_Type="text/csv")]


STALLS: Final[Mapping[str, Way]] = {
    "slow_bodies_of_four_keys": _slow_bodies_of_keys,
    "connections_of_four_keys": _connections_of_keys,
    "failing_uploads": _failing_uploads,
    "refused_requests": _refused_requests,
    "answered_requests": _answered_requests,
}

CONNECTIONS: Final[Mapping[str, Way]] = {
    "idle_400": lambda crowd: [crowd.silent(400)],
    "idle_1100": lambda crowd: [crowd.silent(1100)],
    "slow_2000": lambda crowd: [crowd.slow_heads(2000)],
}

WAYS: Final[Mapping[str, Way]] = {**KEYLESS, **BODIES, **STALLS, **CONNECTIONS}

if __name__ == "__main__":
    main(WAYS, niceness=10)
