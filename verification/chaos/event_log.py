"""An in-memory log of everything that happens in a run, and intervals of its time."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True, slots=True)
class Entry:
    """at: seconds since the start of the log. what: kind of entry. about: its details."""

    at: float
    what: str
    about: dict[str, Any]


class EventLog:
    """Collects entries of all threads. timeline: file of JSON lines. progress: stream for messages."""

    def __init__(self, timeline: Path | None = None, progress: TextIO = sys.stderr) -> None:
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._timeline = timeline.open("w", encoding="utf-8") if timeline else None
        self._progress = progress

    @property
    def now(self) -> float:
        """Seconds since the log was created."""
        return time.monotonic() - self._start

    def record(self, what: str, *, at: float | None = None, **about: Any) -> Entry:
        """Add an entry. at: its time, by default now."""
        with self._lock:
            entry = Entry(self.now if at is None else at, what, about)
            self._entries.append(entry)
            if self._timeline is not None:
                line = {"at": round(entry.at, 3), "what": what, **about}
                self._timeline.write(json.dumps(line, default=str) + "\n")
        return entry

    def report(self, text: str) -> None:
        """Print a progress message and add it as an entry."""
        self.record("message", text=text)
        print(f"[{self.now:6.1f} s] {text}", file=self._progress, flush=True)

    def entries(self, *kinds: str) -> Iterator[Entry]:
        """All entries of these kinds so far, oldest first."""
        with self._lock:
            found = [entry for entry in self._entries if entry.what in kinds]
        yield from found

    def close(self) -> None:
        """Close the timeline file."""
        with self._lock:
            if self._timeline is not None:
                self._timeline.close()
                self._timeline = None


@dataclass(slots=True)
class Interval:
    """An interval of the log's time. end: None while it lasts. reason: what caused it."""

    begin: float
    end: float | None
    reason: str

    def overlaps(self, begin: float, end: float, *, after: float = 0.0) -> bool:
        """Whether it overlaps [begin, end] when it is extended by ``after`` seconds."""
        return self.begin <= end and (self.end is None or begin <= self.end + after)


class Intervals:
    """Intervals in which a condition held. One thread records them, others read them."""

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._lock = threading.Lock()
        self._intervals: list[Interval] = []

    def begin(self, reason: str) -> Interval:
        """Start an interval that lasts until `finish`."""
        interval = Interval(self._event_log.now, None, reason)
        with self._lock:
            self._intervals.append(interval)
        return interval

    def finish(self, interval: Interval) -> None:
        """End an interval now."""
        with self._lock:
            interval.end = self._event_log.now

    @contextmanager
    def lasting(self, reason: str) -> Iterator[None]:
        """An interval as long as the block."""
        interval = self.begin(reason)
        try:
            yield
        finally:
            self.finish(interval)

    def add_instant(self, reason: str) -> None:
        """Record an interval of no length."""
        self.finish(self.begin(reason))

    def overlapping(self, begin: float, end: float, *, after: float = 0.0) -> list[Interval]:
        """All intervals that overlap [begin, end] when extended by ``after`` seconds."""
        with self._lock:
            return [interval for interval in self._intervals if interval.overlaps(begin, end, after=after)]

    def seconds_within(self, begin: float, end: float) -> float:
        """Seconds of [begin, end] that any interval covers."""
        covered, reached = 0.0, begin
        for interval in sorted(self.overlapping(begin, end), key=lambda interval: interval.begin):
            stop = end if interval.end is None else min(interval.end, end)
            covered += max(0.0, stop - max(reached, interval.begin))
            reached = max(reached, stop)
        return covered
