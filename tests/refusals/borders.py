"""Text that no store takes, numbers beyond 64 bits and names in headers, at every border of the service.

Where a request may be refused as malformed, as unprocessable or because its object cannot exist, each of
`REFUSED` is right; never a 500. The dashboard may refuse with a page.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote, urlencode

from tests.refusals.refusal import (
    ANY_CODE,
    DATASETS,
    JOBS,
    KEYS,
    PAGE,
    Act,
    Answer,
    Refusal,
    Server,
    get,
    post,
    refusals,
)

REFUSED: Final = frozenset({400, 404, 422})
MOVED: Final = REFUSED | {412}
"""Likewise where the alias may have been moved since the revision that a form names."""
_NUL: Final = "%00"
_MODEL: Final = "/v1/models/pets"
_UI_MODEL: Final = "/ui/models/pets"
_TABLE: Final = "/ui/tables/csv/models/pets/aliases"
_FORM: Final = (b"Content-Type", b"application/x-www-form-urlencoded")
_SAME_ORIGIN: Final = (b"Sec-Fetch-Site", b"same-origin")
_COOKIES: Final = 60
"""Made-up sessions on one connection."""
_DEEP: Final = 100_000


def page(path: str, form: dict[str, str] | None = None, key: str = "admin") -> Act:
    """A page of the dashboard, or a form sent to it, of a person who has signed in with a key.

    ``{job}`` and ``{dataset}`` in the path stand for ids of the default tenant.
    """

    def act(server: Server) -> Answer:
        target = path.format(job=server.kept["job"], dataset=server.dataset)
        cookie = (b"Cookie", session(server, key))
        if form is None:
            return get(target, cookie, _SAME_ORIGIN, key="")(server)
        return post(target, urlencode(form).encode(), cookie, _FORM, _SAME_ORIGIN, key="")(server)

    return act


def nul() -> list[Refusal]:
    """NUL characters in paths, query strings and forms, of the API and of the dashboard."""
    of_api = {
        "the filter of jobs": (f"{JOBS}?model={_NUL}", "train"),
        "the author of jobs": (f"{JOBS}?created_by={_NUL}", "train"),
        "the start of jobs": (f"{JOBS}?after={_NUL}", "train"),
        "the start of data sets": (f"{DATASETS}?after={_NUL}", "train"),
        "the start of models": (f"/v1/models?after={_NUL}", "query"),
        "the start of keys": (f"{KEYS}?after={_NUL}", "admin"),
        "the actor of the audit log": (f"/v1/audit?actor={_NUL}", "admin"),
        "the object of the audit log": (f"/v1/audit?object={_NUL}", "admin"),
        "the class of students": (f"{JOBS}/{{job}}/students?label={_NUL}", "train"),
        "the class of labels": (f"{JOBS}/{{job}}/labels?label={_NUL}", "train"),
        "the class of suspects": (f"{JOBS}/{{job}}/suspects?class={_NUL}", "train"),
        "the class of rows": (f"{DATASETS}/{{dataset}}/rows?class={_NUL}", "train"),
        "an alias": (f"{_MODEL}/aliases/{_NUL}", "train"),
        "the history of an alias": (f"{_MODEL}/aliases/{_NUL}/history", "train"),
        "a version": (f"{_MODEL}/versions/{_NUL}", "train"),
        "a model": (f"/v1/models/{_NUL}", "train"),
    }
    of_pages = {
        "the model of jobs": "/ui/jobs?model=",
        "the author of jobs": "/ui/jobs?created_by=",
        "the start of jobs": "/ui/jobs?after=",
        "the search in a job": "/ui/jobs/{job}?label=",
        "the method of a job": "/ui/jobs/{job}?method=",
        "the start of data sets": "/ui/datasets?after=",
        "the class of a data set": "/ui/datasets/{dataset}?class=",
        "the start of models": "/ui/models?after=",
        "the method of a class": "/ui/jobs/{job}/classes/0?method=",
        "the author of a table": "/ui/tables/json/jobs?created_by=",
        "the actor of the audit log": "/ui/audit?actor=",
        "the object of the audit log": "/ui/audit?object=",
        "the start of keys": "/ui/keys?after=",
        "an alias": f"{_UI_MODEL}/aliases/",
    }
    forms: dict[str, tuple[str, dict[str, str]]] = {
        "a model to ask": ("/ui/ask", {"model": "\0", "at": "latest", "class": "c", "row": "1"}),
        "a version to ask": ("/ui/ask", {"model": "pets", "at": "\0", "class": "c", "row": "1"}),
        "a base": (f"{_UI_MODEL}/thresholds", {"base": "\0", "label": "cat", "threshold": "1"}),
        "a label": (f"{_UI_MODEL}/thresholds", {"base": "1", "label": "\0", "threshold": "1"}),
        "a name of a key": ("/ui/keys", {"name": "\0", "scope": "query"}),
        "a model of a key": ("/ui/keys", {"name": "x", "scope": "query", "models": "\0"}),
    }
    return [
        *(
            Refusal("borders", f"NUL in {name}", _about(path, key), REFUSED, ANY_CODE)
            for name, (path, key) in of_api.items()
        ),
        *(
            Refusal("borders", f"NUL in {name} of a page", page(path + _NUL), REFUSED, PAGE)
            for name, path in of_pages.items()
        ),
        *(
            Refusal("borders", f"NUL in {name} of a form", page(path, form), REFUSED, PAGE)
            for name, (path, form) in forms.items()
        ),
    ]


def bodies() -> list[Refusal]:
    """NUL, lone surrogates and long numbers in bodies of JSON, and in the conditions of aliases."""

    def job(more: str) -> Act:
        return _about(JOBS, "train", f'{{"dataset_id": "<dataset>", "model": "mine", {more}}}')

    def refused(name: str, act: Act) -> Refusal:
        return Refusal("borders", name, act, REFUSED, ANY_CODE)

    def version(text: str) -> Act:
        return post(f"{_MODEL}/versions", text.encode(), key="train")

    found = [
        refused(f"a job with {name}", job(f'"hyperparameters": {text}'))
        for name, text in {
            "a class with NUL": '{"classes": ["\\u0000"]}',
            "a test set with NUL": '{"evaluation": {"dataset_id": "\\u0000"}}',
            "a test set of half a pair": '{"evaluation": {"dataset_id": "\\ud800"}}',
            "a seed of 4000 digits": '{"seed": ' + "9" * 4000 + "}",
            "many numbers of 4000 digits": '{"classes": [' + ",".join(["9" * 4000] * 50) + "]}",
            "a repeated class": '{"classes": ["u", "u"]}',
        }.items()
    ]
    found += [
        refused(f"thresholds of {name}", version(text))
        for name, text in {
            "a base with NUL": '{"base": "\\u0000", "thresholds": {"cat": 1}}',
            "a class with NUL": '{"base": "1", "thresholds": {"\\u0000": 1}}',
            "half a pair": '{"base": "1", "thresholds": {"\\ud800": 1}}',
            "4000 digits": '{"base": "1", "thresholds": {"cat": ' + "9" * 4000 + "}}",
        }.items()
    ]
    found += [
        refused(f"a key with {name}", post(KEYS, text.encode(), key="admin"))
        for name, text in {
            "NUL in its name": '{"name": "a\\u0000", "scopes": ["query"]}',
            "half a pair in its name": '{"name": "\\ud800", "scopes": ["query"]}',
            "a model with NUL": '{"name": "a", "scopes": ["query"], "models": ["\\u0000"]}',
            "a scope of half a pair": '{"name": "a", "scopes": ["\\ud800"]}',
        }.items()
    ]
    alias = post(f"{_MODEL}/aliases/{_NUL}", b'{"version": 1}', method="PUT", key="train")
    deleted = post(f"{_MODEL}/aliases/{_NUL}", b"", (b"If-Match", b'"1"'), method="DELETE", key="train")
    return [
        *found,
        refused("an alias with NUL is made", alias),
        refused("an alias with NUL is deleted", deleted),
    ]


def names() -> list[Refusal]:
    """Names of aliases in the name of a file, and numbers and rows in forms of the dashboard."""
    evil = {
        "a quote and a second name": "x\"; filename*=UTF-8''setup.bat; a=\"",
        "line ends": "x\r\nX-Evil: 1",
        "a letter of another alphabet": "x\u0416",
        "a control character": "x\x07",
        "a slash": "a/b",
    }
    moves = {
        "version 1e30": {"version": "1e30", "revision": ""},
        "revision 1e30": {"version": "1", "revision": "1e30"},
        "revision -1e300": {"version": "1", "revision": "-1e300"},
        "version 2^63": {"version": str(2**63), "revision": ""},
        "version NaN": {"version": "nan", "revision": ""},
        "version infinity": {"version": "inf", "revision": ""},
    }
    rows = {
        "lists in each other": "[" * _DEEP,
        "objects in each other": '{"x":' * (_DEEP // 5),
        "4000 digits": "[" + "9" * 4000 + ",1,2]",
        "5000 digits": "[" + "9" * 5000 + "]",
    }
    return [
        *(
            Refusal(
                "borders",
                f"a file named by {name}",
                page(f"{_TABLE}/{quote(alias, safe='')}/moves?after=x"),
                REFUSED,
                PAGE,
            )
            for name, alias in evil.items()
        ),
        *(
            Refusal(
                "borders",
                f"an alias moved to {name}",
                page(f"{_UI_MODEL}/aliases/latest", form),
                MOVED,
                PAGE,
            )
            for name, form in moves.items()
        ),
        *(
            Refusal("borders", f"a row of {name}", page("/ui/ask", _asked(row)), REFUSED, PAGE)
            for name, row in rows.items()
        ),
    ]


def sessions() -> list[Refusal]:
    """Made-up sessions, and a document that a client has already."""
    return refusals(
        "borders",
        ("made-up sessions", _made_up_sessions, 404, "no_such_path"),
        ("a description that is known", _known_description, 404, "no_such_path"),
    )


def _about(path: str, key: str, body: str = "") -> Act:
    """A request about ids of the default tenant: ``{job}`` in the path, ``<dataset>`` in the body."""

    def act(server: Server) -> Answer:
        target = path.format(job=server.kept["job"], dataset=server.dataset)
        if body:
            return post(target, body.replace("<dataset>", server.dataset).encode(), key=key)(server)
        return get(target, key=key)(server)

    return act


def _asked(row: str) -> dict[str, str]:
    return {"model": "pets", "at": "latest", "class": "cat", "row": row}


def session(server: Server, key: str) -> bytes:
    """The cookie of a person who has signed in with one of the server's keys, once for all attacks."""
    name = f"session of {key}"
    if name not in server.kept:
        form = urlencode({"key": server.keys[key], "next": "/ui/"}).encode()
        answer = post("/ui/sign-in", form, _FORM, _SAME_ORIGIN, key="")(server)
        assert answer.status == 303, answer.body
        # The name has the port of the Host header, which attacks leave out; the plain name holds everywhere.
        value = answer.headers["set-cookie"].partition(";")[0].partition("=")[2]
        server.kept[name] = f"stms_session={value}"
    return server.kept[name].encode()


def _made_up_sessions(server: Server) -> Answer:
    """Many pages with made-up sessions; the page of a person who has signed in is still shown."""
    signed_in = session(server, "admin")
    for _ in range(_COOKIES):
        cookie = f"stms_session=ses_{secrets.token_hex(12)}_{secrets.token_urlsafe(32)}".encode()
        answer = get("/ui/jobs", (b"Cookie", cookie), key="")(server)
        assert answer.status in {303, 401, 403, 429}, f"a made-up session got {answer.status}"
    shown = get("/ui/jobs", (b"Cookie", signed_in), key="")(server)
    assert shown.status == 200, f"the page of a person who has signed in got {shown.status}"
    return get("/v1/none")(server)


def _known_description(server: Server) -> Answer:
    """`/openapi.json` has an ETag, and is not sent again to a client that names it."""
    first = get("/openapi.json", key="")(server)
    assert first.status == 200
    assert "etag" in first.headers, "the description has no ETag"
    known = (b"If-None-Match", first.headers["etag"].encode())
    again = get("/openapi.json", known, key="")(server)
    assert (again.status, again.body) == (304, b""), f"{again.status} with {len(again.body)} bytes"
    return get("/v1/none")(server)


GROUPS: Final[Sequence[Callable[[], list[Refusal]]]] = (nul, bodies, names, sessions)
