"""Attacks on paths, aliases, pagination, authentication, authorization and idempotency."""

from __future__ import annotations

import json

from tests.refusals.refusal import (
    CLASSES,
    DATASETS,
    JOBS,
    KEYS,
    QUERY,
    UPLOADS,
    Act,
    Answer,
    Refusal,
    Server,
    get,
    post,
    refusals,
)

_BODY = b'{"x": [1, 2, 3]}'
_VERSION = b'{"version": 1}'
_NO_PATH = (404, "no_such_path")
_NO_MODEL = (404, "model_not_found")
_NO_CLASS = (404, "class_not_found")


def paths() -> list[Refusal]:
    """Path traversal, encoded once, twice and wrongly, and strange names of models and classes."""

    def asked(path: str) -> Act:
        return post(f"/v1/models/{path}:query", _BODY)

    return refusals(
        "paths",
        ("up, as it is", get("/v1/models/../../../etc/passwd"), *_NO_PATH),
        ("up, encoded", get("/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd"), *_NO_PATH),
        ("up, encoded twice", get("/v1/models/%252e%252e%252fetc%252fpasswd"), 404, "not_found"),
        ("up, with backslashes", get("/v1/models/..%5c..%5cboot.ini"), 404, "not_found"),
        ("two slashes", get("//v1//models"), *_NO_PATH),
        ("a path with parameters", get("/v1/models;a=b"), *_NO_PATH),
        ("another server's address", get("http://evil.example/v1/none"), *_NO_PATH),
        ("a file of ours", get("/v1/datasets/..%2f..%2fstms.sqlite", key="train"), *_NO_PATH),
        ("a query up", asked("..%2f..%2fpets/classes/cat"), *_NO_MODEL),
        ("a query of a model with NUL", asked("pe%00ts/classes/cat"), *_NO_MODEL),
        ("a query of a model that runs backwards", asked("%E2%80%AEstep/classes/cat"), *_NO_CLASS),
        ("a query of a model of 10 000 letters", asked("a" * 10_000 + "/classes/cat"), *_NO_MODEL),
        ("a query of a version up", asked("pets@..%2f..%2f1/classes/cat"), *_NO_MODEL),
        ("a query of version 10^30", asked("pets@1" + "0" * 30 + "/classes/cat"), 404, "alias_not_found"),
        ("a query of a model that is none", asked("cats/classes/cat"), *_NO_MODEL),
        ("a query of a version that is none", asked("pets@7/classes/cat"), 404, "version_not_found"),
        ("a query of an alias that is none", asked("pets@other/classes/cat"), 404, "alias_not_found"),
        ("a query of a model with a blank", asked("p%20ts/classes/cat"), *_NO_MODEL),
        ("a query of no model", asked(""), *_NO_MODEL),
        ("a query of a model with a slash", asked("pets/classes"), *_NO_MODEL),
        ("a prediction of a model that is none", post("/v1/models/cats:predict", _BODY), *_NO_MODEL),
        ("a prediction of version 9", post("/v1/models/pets@9:predict", _BODY), 404, "version_not_found"),
        ("a prediction of a model with a blank", post("/v1/models/a%20b:predict", _BODY), 404, "not_found"),
        ("several classes of a model that is none", post("/v1/models/cats:query?class=a", _BODY), *_NO_MODEL),
        ("a class that is none", asked("pets/classes/bird"), *_NO_CLASS),
        ("an empty class", asked("pets/classes/"), *_NO_CLASS),
        ("a class with NUL", asked("pets/classes/cat%00"), *_NO_CLASS),
        ("a class of overlong UTF-8", asked("pets/classes/%c0%af"), *_NO_CLASS),
        ("a class of 10 000 letters", asked("pets/classes/" + "a" * 10_000), *_NO_CLASS),
        ("a class up", asked("pets/classes/..%2f..%2fprivate"), *_NO_CLASS),
        ("a class of a Cyrillic letter", asked("pets/classes/c%D0%B0t"), *_NO_CLASS),
        ("a class that ends in a percent", asked("pets/classes/cat%"), *_NO_CLASS),
        ("a class with line ends", asked("pets/classes/a%0d%0aSet-Cookie:%20b"), *_NO_CLASS),
        ("an unknown method of a query", post(QUERY, method="DELETE"), 405, "method_not_allowed"),
        ("a job that is SQL", get(f"{JOBS}/'%20OR%201=1--", key="train"), 404, "not_found"),
        (
            "a trace of class 10^30",
            get(f"{JOBS}/a/students/1{'0' * 30}/svm/trace", key="train"),
            404,
            "not_found",
        ),
        ("version 10^30", get("/v1/models/pets/versions/1" + "0" * 30), 404, "alias_not_found"),
        ("a version below zero", get("/v1/models/pets/versions/-1"), 404, "not_found"),
        ("a key that is a path", post(f"{KEYS}/..%2fall", method="DELETE", key="admin"), *_NO_PATH),
    )


def aliases() -> list[Refusal]:
    """Invalid names of aliases, and failed preconditions of moving one."""

    def move(alias: str, body: bytes = _VERSION, *headers: tuple[bytes, bytes], key: str = "train") -> Act:
        return post(f"/v1/models/pets/aliases/{alias}", body, *headers, method="PUT", key=key)

    moved = (412, "precondition_failed")
    bad = (400, "invalid_request")
    return refusals(
        "aliases",
        ("up", move("%2e%2e"), *bad),
        ("a slash", move("a%2fb"), *_NO_PATH),
        ("a control character", move("a%07"), *bad),
        ("backwards", move("%E2%80%AEa"), *bad),
        ("a number", move("7"), *bad),
        (
            "100 000 letters in the body",
            move("new", b'{"version": "' + b"a" * 100_000 + b'"}'),
            413,
            "body_too_large",
        ),
        ("version 10^30", move("new", b'{"version": 1%s}' % (b"0" * 30)), 422, "invalid_body"),
        ("version 0", move("new", b'{"version": 0}'), 422, "invalid_body"),
        ("a field that there is not", move("new", b'{"version": 1, "force": true}'), 422, "invalid_body"),
        ("a version that is not there", move("new", b'{"version": 99}'), 404, "version_not_found"),
        ("without a condition", move("latest"), 428, "if_match_required"),
        ("a condition of noise", move("latest", _VERSION, (b"If-Match", b'"\x80\xff')), *moved),
        ("a weak condition", move("latest", _VERSION, (b"If-Match", b'W/"1"')), *moved),
        ("a condition of 10^30", move("latest", _VERSION, (b"If-Match", b'"1' + b"0" * 30 + b'"')), *moved),
        ("any state", move("latest", _VERSION, (b"If-Match", b"*")), *moved),
        ("none but one", move("new", _VERSION, (b"If-None-Match", b'"1"')), 400, "bad_condition"),
        ("only if new", move("latest", _VERSION, (b"If-None-Match", b"*")), *moved),
        ("by one who may only ask", move("new", key="query"), 403, "scope_required"),
    )


def pagination() -> list[Refusal]:
    """Invalid parameters of lists, queries and event streams."""
    bad = (400, "invalid_parameter")
    return refusals(
        "pages",
        ("no item", get("/v1/models?limit=0"), *bad),
        ("fewer than none", get("/v1/models?limit=-1"), *bad),
        ("a thousand and one", get("/v1/models?limit=1001"), *bad),
        ("10^30", get("/v1/models?limit=1" + "0" * 30), *bad),
        ("4000 digits", get("/v1/models?limit=" + "9" * 4000), *bad),
        ("letters", get("/v1/models?limit=all"), *bad),
        ("after a path", get("/v1/models?after=../../etc"), *bad),
        ("after SQL", get("/v1/models?after=a'%20UNION%20SELECT%201--"), *bad),
        ("after NUL", get("/v1/models?after=%00"), *bad),
        ("after 2^31", get("/v1/models/pets/versions/1/classes?after=2147483648"), *bad),
        ("after less than nothing", get("/v1/models/pets/versions/1/classes?after=-2"), *bad),
        ("a state that is none", get(f"{JOBS}?status=root", key="train"), *bad),
        ("1001 parameters of a query", post(QUERY + "?" + "a&" * 1001, _BODY), 400, "bad_parameter"),
        ("explain me", post(QUERY + "?explain=me", _BODY), 400, "bad_parameter"),
        ("a class that is no UTF-8", post(CLASSES + "?class=%ff", _BODY), 400, "bad_parameter"),
        (
            "the last event of noise",
            get(f"{JOBS}/a/events", (b"Last-Event-ID", b"\xff"), key="train"),
            400,
            "bad_last_event_id",
        ),
        (
            "the last event 10^30",
            get(f"{JOBS}/a/events", (b"Last-Event-ID", b"1" + b"0" * 30), key="train"),
            400,
            "bad_last_event_id",
        ),
        (
            "the last event of letters",
            get(
                f"{JOBS}/a/events",
                (b"Accept", b"text/event-stream"),
                (b"Last-Event-ID", b"last"),
                key="train",
            ),
            400,
            "bad_last_event_id",
        ),
        *(
            (
                f"no job{tail}",
                post(f"{JOBS}/job_none{tail}", method=method, key="train"),
                404,
                "job_not_found",
            )
            for method, tail in (
                ("GET", ""),
                ("GET", "/events"),
                ("GET", "/students"),
                ("POST", "/cancel"),
                ("GET", "/students/1/gsvm/trace"),
            )
        ),
        (
            "a stream of no job",
            get(f"{JOBS}/a/events", (b"Accept", b"text/event-stream"), key="train"),
            404,
            "job_not_found",
        ),
    )


def authentication() -> list[Refusal]:
    """Missing, invalid and revoked API keys."""
    wrong = (401, "invalid_key")

    def shown(value: bytes) -> Act:
        return get("/v1/models", (b"Authorization", value), key="")

    return refusals(
        "access",
        ("nobody", get("/v1/models", key=""), 401, "key_required"),
        ("nobody asks", post(QUERY, _BODY, key=""), 401, "key_required"),
        ("nobody infers", post("/v2/models/pets:cat/infer", _BODY, key=""), 401, None),
        ("an empty bearer", shown(b"Bearer"), *wrong),
        ("a bearer of blanks", shown(b"Bearer    "), *wrong),
        ("basic", shown(b"Basic YWRtaW46YWRtaW4="), *wrong),
        ("a digest", shown(b'Digest username="admin"'), *wrong),
        ("bytes that are no text", shown(b"Bearer \xff\xfe\xfd"), *wrong),
        ("an id with a wrong secret", _wrong_secret, *wrong),
        ("an id that is none", shown(b"Bearer stms_key_" + b"0" * 24 + b"_" + b"A" * 43), *wrong),
        ("SQL", shown(b"Bearer ' OR '1'='1"), *wrong),
        ("a revoked key", get("/v1/models", key="revoked"), 401, "revoked_key"),
        ("a revoked key asks", post(QUERY, _BODY, key="revoked"), 401, "revoked_key"),
        ("a key in the query string", _key_in_query, 401, "key_required"),
        ("a key in a cookie", _key_in_cookie, 401, "key_required"),
    )


def authorization() -> list[Refusal]:
    """Requests that the scope or the models of the key do not allow."""
    return refusals(
        "access",
        ("who asks, trains", post(JOBS, b"{}", key="query"), 403, "scope_required"),
        ("who asks, sends a data set", post(DATASETS, b"1,a\n", key="query"), 403, "scope_required"),
        ("who asks, plans an upload", post(UPLOADS, b"{}", key="query"), 403, "scope_required"),
        ("who trains, makes keys", post(KEYS, b"{}", key="train"), 403, "scope_required"),
        ("who trains, sees the workers", get("/v1/workers", key="train"), 403, "scope_required"),
        (
            "another's model",
            post("/v1/models/private/classes/cat:query", _BODY, key="limited"),
            403,
            "model_not_allowed",
        ),
        (
            "another's model, encoded",
            post("/v1/models/%70rivate/classes/cat:query", _BODY, key="limited"),
            403,
            "model_not_allowed",
        ),
        (
            "another's model, by an alias",
            post("/v1/models/private@latest:query", _BODY, key="limited"),
            403,
            "model_not_allowed",
        ),
        ("another's model, looked at", get("/v1/models/private", key="limited"), 403, "model_not_allowed"),
        (
            "another's teacher",
            post("/v1/models/private:predict", _BODY, key="limited"),
            403,
            "model_not_allowed",
        ),
        ("a key of one's own making", _many_keys, 429, "too_many_failures"),
    )


def uploads() -> list[Refusal]:
    """Plans of uploads, and data sets from uploads, on a server that has no object store."""

    def planned(size: object, digest: str = "0" * 64, **more: object) -> Act:
        return post(UPLOADS, json.dumps({"bytes": size, "sha256": digest} | more).encode(), key="train")

    def taken(upload: str) -> Act:
        return post(f"{DATASETS}?format=csv&upload={upload}", key="train")

    bad = (422, "invalid_body")
    return refusals(
        "uploads",
        ("without a key", post(UPLOADS, b"{}", key=""), 401, "key_required"),
        ("without an object store", planned(10), 409, "no_object_store"),
        ("of no byte", planned(0), *bad),
        ("of fewer bytes than none", planned(-1), *bad),
        ("of 10^30 bytes", planned(10**30), *bad),
        ("of a text of bytes", planned("10"), *bad),
        ("with a short digest", planned(10, "0" * 63), *bad),
        ("with a digest of other letters", planned(10, "g" * 64), *bad),
        ("at an address of one's own", planned(10, url="http://127.0.0.1/"), *bad),
        ("a file without an object store", taken("upl_1"), 409, "no_object_store"),
        ("a file up", taken("..%2Finbox"), 400, "invalid_parameter"),
        ("a file of no name", taken(""), 400, "invalid_parameter"),
        ("a file of 10 000 letters", taken("a" * 10_000), 400, "invalid_parameter"),
    )


def idempotency() -> list[Refusal]:
    """Idempotency-Key."""
    bad = (400, "invalid_parameter")

    def submit(value: bytes) -> Act:
        return post(
            JOBS, b'{"dataset_id": "ds_none", "model": "evil"}', (b"Idempotency-Key", value), key="train"
        )

    return refusals(
        "repeats",
        ("the same key, another body", _another_body, 422, "idempotency_key_reused"),
        ("another's key", _another_caller, 422, "idempotency_key_reused"),
        ("no letters", submit(b""), *bad),
        ("blanks", submit(b"a b"), *bad),
        ("bytes that are no text", submit(b"\xff\xfe"), *bad),
        ("256 letters", submit(b"a" * 256), *bad),
        ("letters from elsewhere", submit("ключ".encode()), *bad),
        ("500 of them", _many_repeats, 404, "dataset_not_found"),
    )


def _wrong_secret(server: Server) -> Answer:
    key = server.keys["train"]
    return get("/v1/models", (b"Authorization", b"Bearer " + key[:-43].encode() + b"A" * 43), key="")(server)


def _key_in_query(server: Server) -> Answer:
    key = server.keys["train"]
    return get(f"/v1/models?key={key}&api_key={key}&authorization=Bearer%20{key}", key="")(server)


def _key_in_cookie(server: Server) -> Answer:
    return get("/v1/models", (b"Cookie", b"authorization=" + server.keys["train"].encode()), key="")(server)


def _many_keys(server: Server) -> Answer:
    """Send guessed keys until the server answers with another status than 401."""
    guess = get("/v1/models", (b"Authorization", b"Bearer stms_key_" + b"0" * 24 + b"_" + b"A" * 43), key="")
    return next(
        (answer for answer in (guess(server) for _ in range(500)) if answer.status != 401), Answer(401)
    )


def _submit(server: Server, key: str, model: str, idempotency: bytes) -> Answer:
    body = json.dumps({"dataset_id": server.dataset, "model": model}).encode()
    return post(JOBS, body, (b"Idempotency-Key", idempotency), key=key)(server)


def _another_body(server: Server) -> Answer:
    assert _submit(server, "train", "evil", b"one").status == 202
    return _submit(server, "train", "worse", b"one")


def _another_caller(server: Server) -> Answer:
    """Two callers that use the same Idempotency-Key get separate jobs."""
    mine = _submit(server, "train", "evil", b"two")
    theirs = _submit(server, "other", "evil", b"two")
    assert mine.status == theirs.status == 202
    assert mine.document["id"] != theirs.document["id"], "a caller got another caller's job"
    return _submit(server, "other", "worse", b"two")


def _many_repeats(server: Server) -> Answer:
    body = b'{"dataset_id": "ds_none", "model": "evil"}'
    for number in range(500):
        answer = post(JOBS, body, (b"Idempotency-Key", b"key-%d" % number), key="train")(server)
        if answer.status != 404:
            break
    return answer
