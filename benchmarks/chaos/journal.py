"""What happened, and when: everything the others tell, in one order, for the figures and for reading."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True, slots=True)
class Entry:
    """at: seconds since the start of the journal. what: kind of entry. about: its details."""

    at: float
    what: str
    about: dict[str, Any]


class Journal:
    """Entries of all threads. timeline: file that gets them as lines of JSON. progress: for people."""

    def __init__(self, timeline: Path | None = None, progress: TextIO = sys.stderr) -> None:
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._timeline = timeline.open("w", encoding="utf-8") if timeline else None
        self._progress = progress

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def note(self, what: str, *, at: float | None = None, **about: Any) -> Entry:
        """Add an entry, of this moment if none is given."""
        with self._lock:
            entry = Entry(self.now if at is None else at, what, about)
            self._entries.append(entry)
            if self._timeline is not None:
                line = {"at": round(entry.at, 3), "what": what, **about}
                self._timeline.write(json.dumps(line, default=str) + "\n")
        return entry

    def say(self, text: str) -> None:
        """A line for people, and an entry."""
        self.note("said", text=text)
        print(f"[{self.now:6.1f} s] {text}", file=self._progress, flush=True)

    def entries(self, *kinds: str) -> Iterator[Entry]:
        """All entries of these kinds so far, oldest first."""
        with self._lock:
            found = [entry for entry in self._entries if entry.what in kinds]
        yield from found

    def close(self) -> None:
        """Finish the file."""
        with self._lock:
            if self._timeline is not None:
                self._timeline.close()
                self._timeline = None


@dataclass(slots=True)
class Span:
    """A stretch of the journal's time; without an end it lasts. why: what made it."""

    begin: float
    end: float | None
    why: str

    def touches(self, begin: float, end: float, *, after: float = 0.0) -> bool:
        """Whether it has a moment in common with [begin, end], its own end put off by ``after``."""
        return self.begin <= end and (self.end is None or begin <= self.end + after)


class Spans:
    """Stretches of time in which something was so: told by one thread, asked by others."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._spans: list[Span] = []

    def begin(self, why: str) -> Span:
        """From now on, until `finish`."""
        span = Span(self._journal.now, None, why)
        with self._lock:
            self._spans.append(span)
        return span

    def finish(self, span: Span) -> None:
        """Until now."""
        with self._lock:
            span.end = self._journal.now

    def moment(self, why: str) -> None:
        """Something that takes no time."""
        self.finish(self.begin(why))

    def touching(self, begin: float, end: float, *, after: float = 0.0) -> list[Span]:
        """Those with a moment in [begin, end], each taken to last ``after`` seconds longer."""
        with self._lock:
            return [span for span in self._spans if span.touches(begin, end, after=after)]

    def within(self, begin: float, end: float) -> float:
        """Seconds of [begin, end] that lie in any of them."""
        covered, reached = 0.0, begin
        for span in sorted(self.touching(begin, end), key=lambda span: span.begin):
            stop = end if span.end is None else min(span.end, end)
            covered += max(0.0, stop - max(reached, span.begin))
            reached = max(reached, stop)
        return covered
