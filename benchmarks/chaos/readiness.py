"""Checks that /readyz is right: 503 while the database is down, and 200 while everything works.

A server needs a moment to notice a change, and so does the client, so answers within a few seconds of a
change are not judged. Neither are answers of a server that is killed, stopped or starting.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from benchmarks.chaos.house import House, Member

GRACE_SECONDS = 3.0
"""Until a server says that the database is away."""
RETURN_SECONDS = 5.0
"""Until it says that all is well again."""
_PAUSE_SECONDS = 0.25
_TIMEOUT_SECONDS = 15.0
_STARTING_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Look:
    """One answer. status: 0 for none. reasons: checks that failed. Times are the journal's."""

    began: float
    ended: float
    server: str
    status: int
    reasons: tuple[str, ...]


class Readiness:
    """A thread a server that asks four times a second until `stop`."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.looks: list[Look] = []
        self._threads = [threading.Thread(target=self._run, args=(api,), daemon=True) for api in house.apis]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def ready_without_database(self) -> list[Look]:
        """Said to be ready though the database had been away for longer than the grace."""
        return [
            look
            for look in self.looks
            if look.status == 200 and self._away(look.server, look.began - GRACE_SECONDS, look.ended)
        ]

    def not_ready_with_database(self) -> list[Look]:
        """Said not to be ready, or nothing, though all had been well for a while."""
        return [look for look in self.looks if look.status != 200 and not self._excused(look)]

    def truths(self) -> int:
        """Answers that were as they must be, on both sides."""
        wrong = len(self.ready_without_database()) + len(self.not_ready_with_database())
        return len(self.looks) - wrong

    def _member(self, name: str) -> Member:
        return next(api for api in self._house.apis if api.name == name)

    def _away(self, server: str, begin: float, end: float) -> bool:
        """Whether the database was out of the server's reach for the whole time."""
        cut = self._member(server).cut
        return any(spans.within(begin, end) >= end - begin for spans in (self._house.away, cut))

    def _excused(self, look: Look) -> bool:
        member = self._member(look.server)
        since = look.began - GRACE_SECONDS
        if any(
            spans.touching(since, look.ended) for spans in (self._house.away, self._house.unclear, member.cut)
        ):
            return True
        # A process that was started needs its time to open everything; one that was stopped does not.
        return bool(
            member.program.troubled.touching(since, look.ended)
            or (
                look.status == 0
                and member.program.troubled.touching(look.began - _STARTING_SECONDS, look.ended)
            )
        )

    def _run(self, api: Member) -> None:
        while not self._stopping.wait(_PAUSE_SECONDS):
            began = self._house.journal.now
            status, reasons = _ask(api.url)
            look = Look(began, self._house.journal.now, api.name, status, reasons)
            with self._lock:
                self.looks.append(look)
            if status != 200:
                self._house.journal.note("not_ready", server=api.name, status=status, reasons=reasons)


def _ask(url: str) -> tuple[int, tuple[str, ...]]:
    """Status, and the needed checks that failed; (0, …) when nothing came."""
    started = time.monotonic()
    try:
        urllib.request.urlopen(f"{url}/readyz?verbose", timeout=_TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _reasons(error.read())
    except OSError as error:
        return 0, (type(error).__name__, f"{time.monotonic() - started:.1f} s")
    except Exception as error:  # noqa: BLE001 - an answer broken off in the middle has many names
        return 0, (type(error).__name__,)
    return 200, ()


def _reasons(data: bytes) -> tuple[str, ...]:
    try:
        checks = json.loads(data).get("checks") or []
    except ValueError:
        return ("unreadable",)
    return tuple(
        f"{check['name']}: {check['detail']}" for check in checks if check["needed"] and not check["ok"]
    )
