"""Writes committed audit records to standard error, one line of JSON each: `STMS_AUDIT_LOG`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict

from app.domain.entities import AuditRecord
from app.domain.moments import timestamp
from app.logs import json_line

LOGGER = "stms.audit"
"""The logger name that distinguishes these lines from those of the log."""


def write_lines(records: Iterable[AuditRecord]) -> None:
    """Write the fields of the records as ``GET /v1/audit`` shows them, without those that are null.

    Records that cannot be written are left out, because the table has them.
    """
    for record in records:
        line = json_line({"logger": LOGGER} | asdict(record) | {"at": timestamp(record.at)})
        with suppress(OSError):
            # In one piece, so that the lines of several processes do not mix.
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
