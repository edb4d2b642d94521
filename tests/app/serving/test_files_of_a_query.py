"""The number of files that a warm query passes, from the bytes received to the response written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from app.main import create_app
from app.services.keys import create_key
from app.settings import Settings
from app.store.unit_of_work import Store
from core.packed.encoder import Encoder
from tests.app.api.conftest import RememberingQueue
from tests.app.server.wire import read_response, running
from tests.app.serving.written_records import RECORD, encoder
from tests.compiled import IS_COMPILED
from tests.system.in_process import gated
from tests.system.published import linear_student, linear_teacher, publish
from tests.trace_files import files_below

BODY = b'{"x":[1,2]}'
HEAD = b"POST /v1/models/pets/classes/a:query HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"


@pytest.mark.parametrize(
    ("known", "body", "most"), [(None, BODY, 10), (encoder(), json.dumps({"record": RECORD}).encode(), 13)]
)
async def test_a_warm_query_passes_few_files(
    sqlite_store: Store, sqlite_address: str, tmp_path: Path, known: Encoder | None, body: bytes, most: int
):
    weights = np.eye(2) if known is None else np.ones((2, known.layout.columns))
    students = {label: linear_student(label, row) for label, row in zip("ab", weights, strict=True)}
    publish(sqlite_store, "pets", students, linear_teacher(["a", "b"], weights), encoder=known)
    _, key = create_key(sqlite_store, "tests", {"query"}, {"pets"}, rate_limit=100.0)
    wanted = {"data_dir": tmp_path, "database_url": sqlite_address, "require_keys": True}
    settings = Settings.model_validate(wanted)
    app = gated(create_app(settings, queue=RememberingQueue()))
    request = HEAD % key.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with running(app=app, fast_path=app.fast_path) as server:
        reader, writer = await server.connect()
        # Loaded, seen, and known.
        for _ in range(4):
            writer.write(request)
            assert (await read_response(reader)).status == 200
        with files_below("data_received") as files:
            writer.write(request)
            response = await read_response(reader)
        assert response.status == 200
        assert response.body.startswith(b'{"match":true,"score":')
        assert {"server/connection.py", "serving/query/responses.py", "auth/rate_limit.py"} <= files
        # Answers are measured if one before was slow, which a busy machine may cause.
        # Without compiled code a module in Python reads the numbers.
        assert len(files - {"serving/loop_time.py"}) <= most + (not IS_COMPILED), sorted(files)
