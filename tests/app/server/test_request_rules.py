"""The rules of request heads, without a socket."""

from __future__ import annotations

import pytest

from app.server.request_rules import HEAD_BYTES, MAX_HEADERS, TARGET_BYTES, BadRequest, RequestRules

HOST = (b"host", b"x")
CHUNKED = (b"transfer-encoding", b"chunked")
KEY = (b"authorization", b"Bearer a")


def check(
    *headers: tuple[bytes, bytes],
    target: bytes = b"/x",
    version: str = "1.1",
    rules: RequestRules | None = None,
) -> bool:
    return (rules or RequestRules()).check_head(target, headers, version)


@pytest.mark.parametrize(
    ("headers", "version", "is_chunked"),
    [
        ([HOST], "1.1", False),
        ([], "1.0", False),
        ([HOST, KEY, (b"content-length", b"2")], "1.1", False),
        ([HOST, CHUNKED], "1.1", True),
        ([HOST, (b"transfer-encoding", b" Chunked\t")], "1.1", True),
        ([HOST, *[(b"x", b"y")] * (MAX_HEADERS - 1)], "1.1", False),
    ],
)
def test_a_head_within_the_rules_passes(headers, version: str, is_chunked: bool):
    assert check(*headers, version=version) is is_chunked


@pytest.mark.parametrize(
    ("status", "code", "headers", "target", "version"),
    [
        (400, "malformed_request", [], b"/x", "1.1"),
        (400, "malformed_request", [HOST, HOST], b"/x", "1.1"),
        (400, "malformed_request", [HOST, KEY, KEY], b"/x", "1.1"),
        (400, "malformed_request", [HOST, (b"x-api-key", b"a"), (b"x-api-key", b"b")], b"/x", "1.1"),
        (400, "malformed_request", [HOST, CHUNKED, CHUNKED], b"/x", "1.1"),
        (400, "malformed_request", [HOST, (b"transfer-encoding", b"gzip, chunked")], b"/x", "1.1"),
        (400, "malformed_request", [HOST, (b"transfer-encoding", b"identity")], b"/x", "1.1"),
        (400, "malformed_request", [HOST], b"/x", "2.0"),
        (400, "malformed_request", [HOST], b"/x", "0.9"),
        (414, "target_too_long", [HOST], b"/" * (TARGET_BYTES + 1), "1.1"),
        (431, "head_too_large", [HOST, *[(b"x", b"y")] * MAX_HEADERS], b"/x", "1.1"),
    ],
)
def test_a_head_that_breaks_a_rule_is_a_problem(status: int, code: str, headers, target: bytes, version: str):
    with pytest.raises(BadRequest) as raised:
        check(*headers, target=target, version=version)
    assert (raised.value.problem.status, raised.value.problem.code) == (status, code)


def test_an_unfinished_head_has_a_limit_over_all_its_pieces():
    rules = RequestRules()
    for _ in range(5):
        # The first piece may hold the end of another request and does not count.
        rules.check_head_progress(HEAD_BYTES)
        rules.check_head_progress(HEAD_BYTES)
        check(HOST, rules=rules)
    rules.check_head_progress(HEAD_BYTES)
    rules.check_head_progress(HEAD_BYTES)
    with pytest.raises(BadRequest) as raised:
        rules.check_head_progress(1)
    assert raised.value.problem.status == 431


def test_a_head_that_arrives_in_two_pieces_has_the_same_limit():
    rules = RequestRules()
    rules.check_head_progress(HEAD_BYTES)
    large = [(b"host", b"x"), (b"x-large", b"a" * HEAD_BYTES)]
    with pytest.raises(BadRequest) as refused:
        rules.check_head(b"/", large, "1.1")
    assert refused.value.problem.status == 431
    rules.check_head(b"/", [(b"host", b"x")], "1.1")
    rules.check_head_progress(HEAD_BYTES)
    rules.check_head(b"/", [(b"host", b"x"), (b"x-large", b"a" * (HEAD_BYTES - 13))], "1.1")


def test_chunk_framing_is_limited_in_proportion_to_the_body():
    rules = RequestRules()
    rules.check_body_framing(HEAD_BYTES, 0)
    # One chunk for each byte: six bytes on the wire.
    rules.check_body_framing(6_000_000, 1_000_000)
    for received, body in ((HEAD_BYTES + 1, 0), (HEAD_BYTES + 1000 * 17 + 1, 1000)):
        with pytest.raises(BadRequest) as raised:
            rules.check_body_framing(received, body)
        assert raised.value.problem.status == 400
