"""The recording of a service's writes, and the files as they may be after a power cut at any moment of it."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

FILES: Final = (
    "stms.sqlite",
    "stms.sqlite-wal",
    "stms.sqlite-journal",
    "jobs.sqlite",
    "jobs.sqlite-wal",
    "jobs.sqlite-journal",
)
_RECORD: Final = struct.Struct("<BBHIQQ")
_ACKNOWLEDGED: Final = 255
_SECTOR: Final = 512


class Loss(StrEnum):
    """What a power cut leaves of the writes since the last sync of a file.

    DROPPED: nothing. TORN: the first ones, the last of them only in part. REORDERED: any of them.
    """

    DROPPED = "dropped"
    TORN = "torn"
    REORDERED = "reordered"


@dataclass(frozen=True, slots=True)
class Operation:
    """One record: W write, T truncate, S sync, U unlink, A acknowledgement (data: JSON)."""

    kind: str
    file: int
    process: int
    offset: int
    data: bytes


def acknowledge(log: Path, what: dict[str, Any]) -> None:
    """Append an acknowledgement: the client has the answer, so all that came before it must last."""
    data = json.dumps(what).encode()
    with log.open("ab", buffering=0) as file:
        file.write(_RECORD.pack(ord("A"), _ACKNOWLEDGED, 0, 0, 0, len(data)) + data)


def read_log(log: Path) -> list[Operation]:
    """All records in order. Raises ValueError for a log that was cut off."""
    content, at, found = log.read_bytes(), 0, []
    while at < len(content):
        op, file, _, process, offset, length = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        kind = chr(op)
        data = content[at : at + length] if kind in "WA" else b""
        at += len(data)
        if kind in "WA" and len(data) != length:
            raise ValueError("the recording was cut off")
        found.append(Operation(kind, file, process, offset, data))
    return found


@dataclass(slots=True)
class _File:
    """durable: content at the last sync; None for a file that does not exist. pending: changes since then."""

    durable: bytearray | None = None
    pending: list[Operation] = field(default_factory=list)

    def sync(self) -> None:
        self._settle(len(self.pending))

    def settle_removal(self) -> None:
        """Make a removal durable, which file systems commit with the next sync of any file."""
        removals = [place for place, operation in enumerate(self.pending) if operation.kind == "U"]
        if removals:
            self._settle(removals[-1] + 1)

    def _settle(self, count: int) -> None:
        for operation in self.pending[:count]:
            self.durable = _apply(self.durable, operation)
        del self.pending[:count]

    def after(self, loss: Loss, rng: random.Random) -> bytes | None:
        """The content after a power cut."""
        content = None if self.durable is None else bytearray(self.durable)
        for operation in self._survivors(loss, rng):
            content = _apply(content, operation)
        return None if content is None else bytes(content)

    def _survivors(self, loss: Loss, rng: random.Random) -> Iterator[Operation]:
        if loss is Loss.DROPPED or not self.pending:
            return
        if loss is Loss.REORDERED:
            yield from (operation for operation in self.pending if rng.random() < 0.5)
            return
        count = rng.randrange(len(self.pending))
        yield from self.pending[:count]
        last = self.pending[count]
        kept = rng.randrange(len(last.data) // _SECTOR + 1) * _SECTOR
        if last.kind == "W" and kept:
            yield Operation("W", last.file, last.process, last.offset, last.data[:kept])


def _record(files: Sequence[_File], operation: Operation) -> None:
    if operation.kind == "S":
        files[operation.file].sync()
        for file in files:
            file.settle_removal()
    elif operation.kind != "A":
        files[operation.file].pending.append(operation)


def _apply(content: bytearray | None, operation: Operation) -> bytearray | None:
    if operation.kind == "U":
        return None
    content = bytearray() if content is None else content
    end = operation.offset + len(operation.data)
    if operation.kind == "T":
        del content[operation.offset :]
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[operation.offset : end] = operation.data
    return content


def normal_synchronous(operations: Sequence[Operation]) -> list[Operation]:
    """The recording as it would be with synchronous=NORMAL for stms.sqlite.

    There the log is synced before a checkpoint only: its process goes on with a write to the database itself.
    """
    main, wal = FILES.index("stms.sqlite"), FILES.index("stms.sqlite-wal")
    kept = []
    following: dict[int, Operation] = {}
    for operation in reversed(operations):
        if operation.kind == "S" and operation.file == wal:
            after = following.get(operation.process)
            if after is None or after.file != main:
                continue
        if operation.file in (main, wal):
            following[operation.process] = operation
        kept.append(operation)
    return kept[::-1]


def state_after(
    before: Mapping[str, bytes], operations: Iterable[Operation], loss: Loss, rng: random.Random
) -> dict[str, bytes]:
    """The files after a power cut at the end of a recording. before: their synced content at its start."""
    files = [_File(bytearray(before[name]) if name in before else None) for name in FILES]
    for operation in operations:
        _record(files, operation)
    after = {name: file.after(loss, rng) for name, file in zip(FILES, files, strict=True)}
    return {name: content for name, content in after.items() if content is not None}


def crash_states(
    operations: Sequence[Operation], points: Sequence[int], seed: int
) -> Iterator[tuple[int, Loss, dict[str, bytes], list[dict[str, Any]]]]:
    """(position, loss, content of the files, acknowledgements so far) for each of the ascending positions."""
    files = [_File() for _ in FILES]
    acknowledged: list[dict[str, Any]] = []
    losses = list(Loss)
    wanted = iter(sorted(points))
    next_point = next(wanted, None)
    for position, operation in enumerate(operations):
        while next_point is not None and position >= next_point:
            rng = random.Random(f"{seed} {position}")
            loss = losses[next_point % len(losses)]
            after = {name: file.after(loss, rng) for name, file in zip(FILES, files, strict=True)}
            state = {name: content for name, content in after.items() if content is not None}
            yield position, loss, state, list(acknowledged)
            next_point = next(wanted, None)
        if operation.kind == "A":
            acknowledged.append(json.loads(operation.data))
        else:
            _record(files, operation)
