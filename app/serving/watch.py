"""Notes about the answers of students, in this process, until they are written to the database.

Of each calibrated student the answers are counted: how many, how many were yes, and their probabilities, in
sums and bins. Where the alias of a version has a monitor, some answers are chosen as samples that people are
asked about: each by itself, after the answer and with a known probability q. Their rows are kept only where
the monitor says so, and read from the body of the query when they are written.

Where the alias has a shadow, some answers wait here until another version is asked as well.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from urllib.parse import quote
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from app.domain.answer_counts import MOST_COUNTED_CLASSES, PROBABILITY_BINS, ClassCounts
from app.domain.entities import ModelVersion, new_id
from app.domain.figures import HOUR
from app.domain.monitors import ActiveMonitor, Sample, Trials
from app.domain.shadows import ActiveShadow
from app.serving.row_source import HELD_BYTES, MAX_SOURCE_BYTES, RowSource
from core.monitoring.sampling import SamplingPlan
from core.packed import PackedStudent
from core.packed.calibration import Calibration

if TYPE_CHECKING:
    from app.serving.columns.base import Columns

SAMPLE_HEADER: Final = b"x-sample-id"
"""Ids of the answers of a response that people are asked about, each with row and class if there are several.
"""
REFUSAL_HEADER: Final = b"x-sample"
"""With the value ``no``, none of the answers is chosen."""
_FOLDED: Final = 256
"""Scores of single answers that wait until their probabilities are computed together."""
_MOST_WAITING: Final = 4096
"""Samples that wait to be written; further ones are dropped."""
_MOST_SHADOWED: Final = 1024
"""Answers that wait for the shadow; further ones are dropped."""
_MOST_OF_QUERY: Final = 32
"""Answers of one query that wait for the shadow."""
_MOST_NAMED: Final = 50
"""Samples that the header of one response names."""

_Version: TypeAlias = tuple[str, str, int]
_Key: TypeAlias = tuple[str, str, int, str]
"""(tenant, model, version, class)."""
Floats: TypeAlias = NDArray[np.float64]


class AnswerTally:
    """Counts of the answers of one student, thread-safe."""

    def __init__(self, label: str, threshold: float, calibration: Calibration) -> None:
        self._label, self._threshold, self._calibration = label, threshold, calibration
        self._lock = threading.Lock()
        # Only appended to without the lock, which loses nothing between threads.
        self._scores: list[float] = []
        self._reset()

    def one(self, score: float) -> None:
        """Count an answer."""
        scores = self._scores
        scores.append(score)
        if len(scores) >= _FOLDED:
            with self._lock:
                self._fold()

    def many(self, scores: Floats) -> None:
        """Count the answers with these scores (n,)."""
        with self._lock:
            self._add(scores)

    def take(self) -> ClassCounts | None:
        """The counts since the last call; None without an answer."""
        with self._lock:
            self._fold()
            if not self._asked:
                return None
            bins = tuple(self._bins.tolist())
            taken = ClassCounts(self._label, self._asked, self._yes, self._p, self._p_yes, bins)
            self._reset()
            return taken

    def _reset(self) -> None:
        self._asked = self._yes = 0
        self._p = self._p_yes = 0.0
        self._bins = np.zeros(PROBABILITY_BINS, dtype=np.int64)

    def _fold(self) -> None:
        """Add the scores that wait."""
        number = len(self._scores)
        if number:
            scores = np.array(self._scores[:number])
            del self._scores[:number]
            self._add(scores)

    def _add(self, scores: Floats) -> None:
        p = self._calibration.probabilities(scores)
        is_yes = scores >= self._threshold
        bins = np.minimum((PROBABILITY_BINS * np.sqrt(p)).astype(np.int64), PROBABILITY_BINS - 1)
        self._asked += len(scores)
        self._yes += int(is_yes.sum())
        self._p += float(p.sum())
        self._p_yes += float(p[is_yes].sum())
        self._bins += np.bincount(bins, minlength=PROBABILITY_BINS)


class AnswerWatch:
    """Notes the answers of one student.

    is_on: whether there is anything to note, which is all that queries look at otherwise. chooses: whether
    some of the answers are chosen: by ``monitors``, or for ``shadows``. columns: of the version, by which its
    rows are read; None until it is loaded.
    """

    __slots__ = (
        "__weakref__",
        "_calibration",
        "_tally",
        "_threshold",
        "chooses",
        "columns",
        "is_on",
        "label",
        "monitors",
        "shadows",
    )

    def __init__(self, student: PackedStudent | None = None, tally: AnswerTally | None = None) -> None:
        self.label = "" if student is None else student.label
        self._threshold = 0.0 if student is None else student.threshold
        self._calibration = None if student is None else student.calibration
        self._tally = tally
        self.monitors: tuple[tuple[ActiveMonitor, TrialCount], ...] = ()
        self.shadows: tuple[ActiveShadow, ...] = ()
        self.columns: Columns | None = None
        self.chooses = False
        self.is_on = tally is not None

    def follow(
        self,
        monitors: Iterable[tuple[ActiveMonitor, TrialCount]],
        shadows: Iterable[ActiveShadow] = (),
    ) -> None:
        """Let these monitors choose answers from now on, and count those that they could choose.

        shadows: that some answers are chosen for.
        """
        self.monitors, self.shadows = tuple(monitors), tuple(shadows)
        self.chooses = bool(self.monitors or self.shadows)
        self.is_on = self._tally is not None or self.chooses

    def note_row(self, score: float, noted: Noted) -> None:
        """Count the answer of a query of one row; noted: gets it where a monitor may choose it."""
        if self.chooses:
            noted.append((self, score, None))
        elif self._tally is not None:
            self._tally.one(score)

    def count(self, scores: float | Floats) -> None:
        """Count the answer with this score, or the answers with scores (n,)."""
        if self._tally is None:
            return
        if isinstance(scores, float):
            self._tally.one(scores)
        else:
            self._tally.many(scores)

    def accepts(self, score: float) -> bool:
        """Whether an answer with this score is yes."""
        return score >= self._threshold

    def choose(self, monitor: ActiveMonitor, scores: float | Floats) -> tuple[int, int, list[Chosen]]:
        """Number of answers, of yes answers, and the answers that a monitor chooses, from scores (n,)."""
        if isinstance(scores, float):
            return self._choose_row(monitor.plan, scores)
        is_yes = scores >= self._threshold
        calibrated = self._calibration
        probabilities = np.zeros(len(scores)) if calibrated is None else calibrated.probabilities(scores)
        plan = monitor.plan
        inclusion = np.where(
            is_yes, plan.yes, np.minimum(1.0, plan.floor + plan.slope * np.sqrt(probabilities))
        )
        draws = np.array([random.random() for _ in range(len(scores))])  # noqa: S311 - as above
        places = np.flatnonzero(draws < inclusion).tolist()
        found = [
            Chosen(
                place,
                float(scores[place]),
                bool(is_yes[place]),
                None if calibrated is None else float(probabilities[place]),
                float(inclusion[place]),
            )
            for place in places
        ]
        return len(scores), int(is_yes.sum()), found

    def _choose_row(self, plan: SamplingPlan, score: float) -> tuple[int, int, list[Chosen]]:
        accepted = score >= self._threshold
        # This draw needs no secrecy, because nobody outside sees the draws of the process.
        draw = random.random()  # noqa: S311
        if draw >= (plan.yes if accepted else plan.floor + plan.slope):
            # This holds for most answers, whose probabilities are then not computed.
            return 1, accepted, []
        p = None if self._calibration is None else self._calibration.probability(score)
        q = plan.probability(accepted, p or 0.0)
        return 1, accepted, [Chosen(0, score, accepted, p, q)] if draw < q else []


class TrialCount:
    """Answers to a class that a monitor could have chosen, and how many of them were yes."""

    __slots__ = ("asked", "yes")

    def __init__(self) -> None:
        self.asked = self.yes = 0


class Chosen(NamedTuple):
    """An answer that a monitor has chosen. place: among the scores. p: None without a calibration."""

    place: int
    score: float
    answer: bool
    p: float | None
    q: float


Noted: TypeAlias = list[tuple[AnswerWatch, float | Floats, Sequence[int] | None]]
"""Answers to note for a query: scores of a student, of one row or (n,), and the numbers of their rows; None
for the first rows in order.
"""


class Shadowed(NamedTuple):
    """An answer that a shadow is asked about, too. number: of the row in the source."""

    shadow: ActiveShadow
    label: str
    answer: bool
    columns: Columns
    source: RowSource
    number: int


class ForMonitor(NamedTuple):
    """Notes for a monitor. dropped: number of chosen answers that could not be kept."""

    samples: list[Sample]
    trials: list[Trials]
    dropped: int


class AnswerWatches:
    """The watches of all students in this process.

    keeps_rows: whether the operator lets samples have their rows. dropped: samples that were given up since
    its start. has_samples: whether anything is to be written for a monitor.
    """

    def __init__(self) -> None:
        self.keeps_rows = False
        self._lock = threading.Lock()
        self._live: WeakValueDictionary[_Key, AnswerWatch] = WeakValueDictionary()
        self._tallies: dict[_Key, tuple[ModelVersion, AnswerTally]] = {}
        self._counted: Counter[_Version] = Counter()
        self._monitors: dict[_Version, tuple[ActiveMonitor, ...]] = {}
        self._shadows: dict[_Version, tuple[ActiveShadow, ...]] = {}
        self._waiting: deque[tuple[Sample, _Content | None]] = deque()
        self._held = 0
        self._shadowed: deque[Shadowed] = deque()
        self._shadow_held = 0
        self.shadow_dropped: Counter[tuple[str, int, str]] = Counter()
        self._trials: dict[tuple[str, int, str], TrialCount] = {}
        self._dropped: Counter[str] = Counter()
        self.dropped = 0
        self.has_samples = False

    def of(self, version: ModelVersion, student: PackedStudent) -> AnswerWatch:
        """The watch of a student of a version; it counts if the student is calibrated.

        At most `MOST_COUNTED_CLASSES` classes of a version are counted: the first ones that were queried.
        """
        key = version.tenant, version.model, version.version, student.label
        with self._lock:
            watch = self._live.get(key)
            if watch is None:
                watch = self._live[key] = AnswerWatch(student, self._tally(key, version, student))
                watch.follow(self._monitors_of(key), self._shadows.get(key[:3], ()))
            return watch

    def follow(
        self,
        models: Collection[str] | None,
        monitors: Iterable[ActiveMonitor],
        shadows: Iterable[ActiveShadow] = (),
    ) -> None:
        """Let the monitors of some models, each after its tenant, choose answers; None for all models.

        shadows: of the same models, which some answers are chosen for.
        """
        with self._lock:
            for known in (self._monitors, self._shadows):
                for name in [name for name in known if models is None or f"{name[0]}/{name[1]}" in models]:
                    del known[name]
            for monitor in monitors:
                name = monitor.tenant, monitor.model, monitor.version
                self._monitors[name] = (*self._monitors.get(name, ()), monitor)
            for shadow in shadows:
                name = shadow.tenant, shadow.model, shadow.version
                self._shadows[name] = (*self._shadows.get(name, ()), shadow)
            for key, watch in self._live.items():
                if models is None or f"{key[0]}/{key[1]}" in models:
                    watch.follow(self._monitors_of(key), self._shadows.get(key[:3], ()))

    def _monitors_of(self, key: _Key) -> Iterator[tuple[ActiveMonitor, TrialCount]]:
        for monitor in self._monitors.get(key[:3], ()):
            if monitor.covers(key[3]):
                name = monitor.id, monitor.run, key[3]
                yield monitor, self._trials.setdefault(name, TrialCount())

    def note(
        self,
        noted: Noted,
        request_id: bytes,
        *,
        refused: bool,
        source: Callable[[], RowSource | None] = lambda: None,
    ) -> bytes:
        """Note the answers of a query; returns the value of `SAMPLE_HEADER`, empty without a sample.

        refused: whether the query wants none of its answers to be chosen. source: makes what its rows can be
        read from, called at most once and only where a row is needed.
        """
        ids: list[str] = []
        is_one = len(noted) == 1
        rows_of = _Once(source)
        for watch, scores, rows in noted:
            watch.count(scores)
            if not watch.chooses or refused:
                continue
            for shadow in watch.shadows:
                self._shadow(shadow, watch, scores, rows, rows_of)
            for monitor, count in watch.monitors:
                for sample in self._choose(monitor, count, watch, scores, rows, request_id, rows_of):
                    single = is_one and isinstance(scores, float)
                    ids.append(sample.id if single else _described(sample, named=not is_one))
        return ", ".join(ids[:_MOST_NAMED]).encode("ascii")

    def _choose(
        self,
        monitor: ActiveMonitor,
        count: TrialCount,
        watch: AnswerWatch,
        scores: float | Floats,
        rows: Sequence[int] | None,
        request_id: bytes,
        rows_of: _Once,
    ) -> list[Sample]:
        asked, yes, chosen = watch.choose(monitor, scores)
        # This comes before the samples are kept, so that no sample is written without its answers.
        with self._lock:
            count.asked += asked
            count.yes += yes
            self.has_samples = True
        return self._keep(monitor, watch, rows, chosen, request_id, rows_of) if chosen else []

    def _keep(
        self,
        monitor: ActiveMonitor,
        watch: AnswerWatch,
        rows: Sequence[int] | None,
        chosen: Sequence[Chosen],
        request_id: bytes,
        rows_of: _Once,
    ) -> list[Sample]:
        source = rows_of() if self.keeps_rows and monitor.keeps_rows and watch.columns is not None else None
        now = time.time()
        samples = [
            Sample(
                new_id("smp", now),
                monitor.id,
                monitor.run,
                monitor.tenant,
                monitor.model,
                monitor.version,
                watch.label,
                int(now // HOUR),
                now,
                request_id.decode("ascii"),
                one.place if rows is None else int(rows[one.place]),
                one.answer,
                one.score,
                one.p,
                one.q,
            )
            for one in chosen
        ]
        with self._lock:
            room = _MOST_WAITING - len(self._waiting)
            kept = samples[:room]
            if source is not None and self._held + source.size > HELD_BYTES:
                source = None
            if source is not None and kept:
                self._held += source.size
            for sample in kept:
                content = None if source is None else _Content(source, watch.columns, sample.row)
                self._waiting.append((sample, content))
            self._give_up(monitor.id, len(samples) - len(kept))
        return kept

    def _shadow(
        self,
        shadow: ActiveShadow,
        watch: AnswerWatch,
        scores: float | Floats,
        rows: Sequence[int] | None,
        rows_of: _Once,
    ) -> None:
        """Let some answers wait for a shadow."""
        if isinstance(scores, float):
            # Not for secrets, as below.
            places = [0] if random.random() < shadow.share else []  # noqa: S311
        else:
            draws = np.array([random.random() for _ in range(len(scores))])  # noqa: S311
            places = np.flatnonzero(draws < shadow.share).tolist()
        if not places or shadow.until <= time.time():
            return
        source, columns = rows_of(), watch.columns
        with self._lock:
            room = 0
            if source is not None and columns is not None:
                fits = self._shadow_held + source.size <= HELD_BYTES
                room = min(_MOST_OF_QUERY, _MOST_SHADOWED - len(self._shadowed)) if fits else 0
            taken = places[:room]
            if source is not None and columns is not None and taken:
                self._shadow_held += source.size
                for place in taken:
                    score = scores if isinstance(scores, float) else float(scores[place])
                    number = place if rows is None else int(rows[place])
                    answer = watch.accepts(score)
                    self._shadowed.append(Shadowed(shadow, watch.label, answer, columns, source, number))
            if len(taken) < len(places):
                self.shadow_dropped[shadow.id, shadow.version, watch.label] += len(places) - len(taken)

    @property
    def has_shadowed(self) -> bool:
        """Whether answers wait for a shadow, or were dropped."""
        return bool(self._shadowed or self.shadow_dropped)

    def take_shadowed(self) -> tuple[list[Shadowed], Counter[tuple[str, int, str]]]:
        """The answers that wait for shadows, and how many were dropped by (shadow, version, class)."""
        with self._lock:
            taken, self._shadowed = list(self._shadowed), deque()
            dropped, self.shadow_dropped = self.shadow_dropped, Counter()
            self._shadow_held = 0
        return taken, dropped

    def _give_up(self, monitor_id: str, number: int) -> None:
        if number:
            self._dropped[monitor_id] += number
            self.dropped += number

    def take_samples(self) -> dict[str, ForMonitor]:
        """What was noted for monitors since the last call, by the id of each, with the rows of samples."""
        found: dict[str, ForMonitor] = {}
        with self._lock:
            self.has_samples = False
            samples, self._waiting = self._waiting, deque()
            self._held = 0
            dropped, self._dropped = self._dropped, Counter()
            for (monitor_id, run, label), count in self._trials.items():
                if count.asked:
                    one = found.setdefault(monitor_id, ForMonitor([], [], dropped[monitor_id]))
                    one.trials.append(Trials(monitor_id, run, label, count.asked, count.yes))
                    count.asked = count.yes = 0
            self._forget_counts()
        for sample, content in samples:
            whole = sample if content is None else sample._replace(content=content.body())
            found.setdefault(sample.monitor_id, ForMonitor([], [], 0)).samples.append(whole)
        return found

    def _forget_counts(self) -> None:
        """Forget the counts of ended runs, so that no more are kept than there are monitored students."""
        used = {id(count) for watch in self._live.values() for _, count in watch.monitors}
        for name in [name for name, count in self._trials.items() if id(count) not in used]:
            del self._trials[name]

    def put_back(self, monitor_id: str, noted: ForMonitor) -> None:
        """Keep notes that could not be written: the counts, and as many samples as there is room for."""
        with self._lock:
            self.has_samples = True
            for one in noted.trials:
                count = self._trials.setdefault((monitor_id, one.run, one.label), TrialCount())
                count.asked += one.asked
                count.yes += one.yes
            room = max(_MOST_WAITING - len(self._waiting), 0)
            for sample in reversed(noted.samples[:room]):
                size = len(sample.content or b"")
                fits = self._held + size <= HELD_BYTES
                self._held += size if fits else 0
                self._waiting.appendleft((sample if fits else sample._replace(content=None), None))
            self._dropped[monitor_id] += noted.dropped
            self._give_up(monitor_id, len(noted.samples[room:]))

    def _tally(self, key: _Key, version: ModelVersion, student: PackedStudent) -> AnswerTally | None:
        known = self._tallies.get(key)
        if known is not None:
            return known[1]
        if student.calibration is None or self._counted[key[:3]] >= MOST_COUNTED_CLASSES:
            return None
        tally = AnswerTally(student.label, student.threshold, student.calibration)
        self._tallies[key] = version, tally
        self._counted[key[:3]] += 1
        return tally

    def take_counts(self) -> list[tuple[ModelVersion, tuple[ClassCounts, ...]]]:
        """Counts since the last call, by version."""
        with self._lock:
            tallies = [*self._tallies.items()]
        versions: dict[_Version, ModelVersion] = {}
        taken: dict[_Version, list[ClassCounts]] = {}
        for key, (version, tally) in tallies:
            # A watch that ends after this look has counted nothing that the next call does not take.
            is_live = key in self._live
            counts = tally.take()
            if counts is not None:
                versions[key[:3]] = version
                taken.setdefault(key[:3], []).append(counts)
            elif not is_live:
                self._forget(key)
        return [(versions[name], tuple(counts)) for name, counts in taken.items()]

    def _forget(self, key: _Key) -> None:
        with self._lock:
            # It may have been loaded again in the meantime.
            if key not in self._live and self._tallies.pop(key, None) is not None:
                self._counted[key[:3]] -= 1
                if not self._counted[key[:3]]:
                    del self._counted[key[:3]]


class _Once:
    """The source of the rows of a query, made when it is first needed; None for a body that is too large."""

    __slots__ = ("_is_made", "_made", "_make")

    def __init__(self, make: Callable[[], RowSource | None]) -> None:
        self._make, self._is_made = make, False
        self._made: RowSource | None = None

    def __call__(self) -> RowSource | None:
        if not self._is_made:
            made = self._make()
            self._made = made if made is not None and made.size <= MAX_SOURCE_BYTES else None
            self._is_made = True
        return self._made


class _Content(NamedTuple):
    """Where the row of a sample is. number: in the source."""

    source: RowSource
    columns: Columns | None
    number: int

    def body(self) -> bytes | None:
        return None if self.columns is None else self.source.body_of(self.columns, self.number)


def refuses_samples(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a query forbids choosing its answers. headers: by name."""
    return headers.get(REFUSAL_HEADER, b"").strip().lower() == b"no"


def _described(sample: Sample, *, named: bool) -> str:
    """The id of a sample in the header, with its row and, for several classes, its class."""
    text = f"{sample.id};row={sample.row}"
    return f'{text};class="{quote(sample.label)}"' if named else text
