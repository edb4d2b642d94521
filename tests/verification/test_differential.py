"""The differential test: what it sends and sees, and a process that keeps heads beside one that does not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from verification.differential.comparison import Findings, compare
from verification.differential.conversation import Outcome, Response, converse
from verification.differential.listed import KINDS
from verification.differential.requests import Case, Generator
from verification.differential.servers import knowing_and_not

KEYS = {name: f"stms_{name}" for name in ("all", "one", "admin", "old", "other")}


@asynccontextmanager
async def answering(*bodies: bytes) -> AsyncIterator[list[int]]:
    """Ports of servers, each of which answers every connection with a body and closes it."""

    writers: list[asyncio.StreamWriter] = []

    def serve(body: bytes) -> Any:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            head = b"HTTP/1.1 200 OK\r\nDate: now\r\nB: 2\r\nA: 1\r\nContent-Length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            writer.write_eof()
            await reader.read()

        return asyncio.start_server(answer, "127.0.0.1", 0)

    servers = [await serve(body) for body in bodies]
    try:
        yield [server.sockets[0].getsockname()[1] for server in servers]
    finally:
        for server in servers:
            server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)


def test_a_case_follows_from_its_seed_and_number():
    one, other = Generator(KEYS, 1), Generator(KEYS, 1)
    assert [one.case(number) for number in range(50)] == [other.case(number) for number in range(50)]
    assert one.case(3) != Generator(KEYS, 2).case(3)


def test_cases_are_of_all_kinds_and_many_heads_repeat():
    cases = [Generator(KEYS, 1).case(number) for number in range(800)]
    assert {len(case.methods) for case in cases} == {1, 2, 3, 4, 5, 6, 8}
    assert {"POST", "GET", "HEAD", "OPTIONS", "BREW"} <= {each for case in cases for each in case.methods}
    assert len({len(case.pieces) for case in cases}) >= 4
    data = b"".join(case.data for case in cases).lower()
    for part in (b"chunked", b"100-continue", b"upgrade", b"stms-peer", b"/v1/whoami", b"\r\n folded"):
        assert part in data
    heads = Counter(piece.partition(b"\r\n\r\n")[0] for case in cases for _, piece in case.pieces[:1])
    assert sum(number for number in heads.values() if number > 2) > len(cases) / 4


def test_an_outcome_has_no_date_and_a_head_of_sorted_headers():
    async def story() -> None:
        async with answering(b"hi") as [port]:
            outcome = await converse(port, Case(0, ("GET",), ((0.0, b"GET / HTTP/1.1\r\n"),)), 5.0)
            headers = ((b"a", b"1"), (b"b", b"2"), (b"content-length", b"2"))
            assert outcome == Outcome((Response(200, headers, b"hi"),), True, b"")

    asyncio.run(story())


@pytest.mark.parametrize(("bodies", "is_same"), [((b"a", b"a"), True), ((b"a", b"b"), False)])
def test_different_answers_are_found(bodies: tuple[bytes, ...], is_same: bool):
    async def story() -> Findings:
        async with answering(*bodies) as [one, other]:
            return await compare((one, other), Generator(KEYS, 1), 60)

    found = asyncio.run(story())
    assert found.requests >= 60
    assert found.unexplained_count == (0 if is_same else found.cases)
    assert len(found.unexplained) == min(found.unexplained_count, 40)


def test_only_listed_differences_are_explained():
    case = Case(0, ("POST",), ((0.0, b"X-Request-ID: a\r\nx-request-id: b\r\n"),))
    headers = ((b"x-request-id", b"a"),)
    base = Outcome((Response(200, headers, b"x"),), False, b"")

    def explained(case: Case, other: Response) -> set[str]:
        changed = replace(base, responses=(other,))
        return {kind.name for kind in KINDS if kind.explains(case, base, changed)}

    [response] = base.responses
    assert explained(case, replace(response, headers=headers * 2)) >= {"repeated_header"}
    other_id = replace(response, headers=((b"x-request-id", b"b"),))
    assert explained(case, other_id) == {"several_request_ids"}
    assert explained(Case(0, ("POST",), ((0.0, b"X-Request-ID: a\r\n"),)), other_id) == set()
    assert explained(case, replace(response, status=404)) == set()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_process_that_keeps_heads_answers_as_one_that_parses_each(tmp_path: Path):
    with knowing_and_not(tmp_path) as (ports, keys):
        found = asyncio.run(compare(ports, Generator(keys, 3, only_queries=True), 5000))
    assert found.unexplained == []
    assert found.statuses[200] > 1500
    assert {400, 401, 403, 404, 405, 422, 431} <= set(found.statuses)
