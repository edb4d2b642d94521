"""Secrets are masked in logs, and repeated lines are suppressed."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from app.domain.audit_context import Actor, AuditContext, audit_context
from app.domain.log_context import TraceContext, traced, working_on
from app.domain.redaction import redact
from app.logs import Masking, Repeats, mask_logs, message_line

ID = "key_" + "0a" * 12
SECRET = "A-z_9" * 8 + "xyz"
KEY = f"stms_{ID}_{SECRET}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Bearer {KEY}", f"Bearer stms_{ID}_***"),
        (f"GET /v1?key={KEY}&x=1", f"GET /v1?key=stms_{ID}_***&x=1"),
        (f"{KEY[:60]}…", f"stms_{ID}_***…"),
        (KEY.replace("_", "%5F"), f"stms%5F{ID.replace('_', '%5F')}_***"),
        (f"b'{KEY}' and '{KEY}'", f"b'stms_{ID}_***' and 'stms_{ID}_***'"),
        (f"stms_session=ses_{ID[4:]}_{ID[4:]}_{SECRET};", f"stms_session=ses_{ID[4:]}_***;"),
        (f"ses%5f{ID[4:]}%5f{ID[4:]}%5F{SECRET}", f"ses%5f{ID[4:]}_***"),
        (f"the session ses_{ID[4:]} ended", f"the session ses_{ID[4:]} ended"),
        (f"Bearer eyJhbGciOiJ9.eyJpc3MiOiJ9.{SECRET}\n", "Bearer eyJhbGciOiJ9.eyJ***\n"),
        ("postgresql://stms:s3cr&t@db/stms", "postgresql://stms:***@db/stms"),
        (
            "postgresql+psycopg://stms:p%40ss:w@10.0.0.1:5432/x?y=1",
            "postgresql+psycopg://stms:***@10.0.0.1:5432/x?y=1",
        ),
        ("host=db password=hunter2 user=x", "host=db password=*** user=x"),
        ("PASSWORD='hunter 2', x", "PASSWORD=***, x"),
        ('{"secret": "hunter2"}', '{"secret": ***}'),
        ("secret: hunter2; next", "secret: ***; next"),
        ("http://127.0.0.1:8000/docs", "http://127.0.0.1:8000/docs"),
        (f"the key {ID} was revoked", f"the key {ID} was revoked"),
        ("", ""),
    ],
)
def test_only_secrets_are_masked(text: str, expected: str):
    assert redact(text) == expected
    assert redact(redact(text)) == redact(text)


def test_masking_takes_linear_time():
    started = time.process_time()
    for text in (
        "eyJa.eyJ",
        "-eyJ",
        "eyJ",
        "stms_key_0a_",
        "stms_key_",
        "a://b:",
        "://",
        ":",
        "password=",
        "password='",
        'secret="',
    ):
        assert len(redact(text * 20_000)) > 0
    assert time.process_time() - started < 10


def test_lines_arguments_and_tracebacks_are_masked():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("tests.masking")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        mask_logs()
        mask_logs()
        assert isinstance(handler.formatter, Masking)
        assert isinstance(logging.lastResort, logging.Handler)
        assert isinstance(logging.lastResort.formatter, Masking)
        logger.warning("the key %s is wrong", KEY)
        try:
            raise RuntimeError(f"postgresql://a:b@c {KEY}")
        except RuntimeError:
            logger.exception("it failed")
    finally:
        logger.removeHandler(handler)
        logging.lastResort.setFormatter(None)
    text = stream.getvalue()
    assert SECRET not in text
    assert "a:b@c" not in text
    assert f"WARNING the key stms_{ID}_*** is wrong" in text
    assert "RuntimeError: postgresql://a:***@c" in text


def test_a_repeated_line_is_suppressed_for_some_seconds(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("app.logs.time.monotonic", lambda: now[0])
    monkeypatch.setattr("app.logs._MAX_LINES", 3)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(Repeats(10.0))
    logger = logging.Logger("waiting")
    logger.addHandler(handler)
    for moment in (100.0, 101.0, 109.9, 110.1):
        now[0] = moment
        logger.warning("job %s waits", "a")
        logger.warning("job %s waits", "b")
    assert stream.getvalue().splitlines() == ["job a waits", "job b waits"] * 2
    for number in range(5):
        logger.warning("line %d", number)
    assert stream.getvalue().count("line") == 5
    for _ in range(2):
        logger.warning("failed", exc_info=ValueError("why"))
    assert stream.getvalue().count("ValueError: why") == 2


@pytest.fixture
def json_lines() -> Iterator[tuple[logging.Logger, Callable[[], list[dict[str, Any]]]]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("tests.json")
    logger.addHandler(handler)
    logger.propagate = False
    before = {each: each.formatter for each in logging.getLogger().handlers}
    mask_logs("json")
    yield logger, lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    for each, formatter in before.items():
        each.setFormatter(formatter)
    assert logging.lastResort is not None
    logging.lastResort.setFormatter(None)
    logger.removeHandler(handler)


def test_a_json_line_names_request_key_job_and_trace(json_lines):
    logger, lines = json_lines
    trace = TraceContext("0a" * 16, "0b" * 8)
    with audit_context(AuditContext(Actor(ID, "boss"), request_id="r-1")), working_on("job_1"), traced(trace):
        logger.warning("two\nlines of %s", "text")
    logger.info("not shown at this level")
    logger.error("without a context")
    first, second = lines()
    at = datetime.fromisoformat(first.pop("ts"))
    assert abs(at.timestamp() - time.time()) < 100
    assert first.pop("pid") == os.getpid()
    assert first == {
        "level": "WARNING",
        "logger": "tests.json",
        "msg": "two\nlines of text",
        "request_id": "r-1",
        "key": ID,
        "job_id": "job_1",
        "trace_id": trace.trace_id,
        "span_id": trace.span_id,
    }
    assert second.keys() == {"ts", "level", "logger", "msg", "pid"}


def test_secrets_in_json_lines_are_masked_and_the_line_stays_json(json_lines):
    logger, lines = json_lines
    try:
        raise ValueError(f"password=hunter2 {KEY}")
    except ValueError:
        logger.exception("host=db password=hunter2")
    [line] = lines()
    assert line["msg"] == "host=db password=***"
    assert line["exc"].startswith("Traceback")
    assert "ValueError: password=*** stms_" in line["exc"]
    assert "hunter2" not in json.dumps(line)
    assert SECRET not in json.dumps(line)


def test_messages_of_a_parent_process_have_the_same_form():
    line = json.loads(message_line("stms api", "2 processes serve."))
    assert (line["level"], line["logger"], line["msg"]) == ("INFO", "stms api", "2 processes serve.")
