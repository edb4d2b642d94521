"""The children of one process that encode pictures, and the queues before them."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.domain.entities import Caller
from app.domain.errors import InvalidRequest, NotFound, Overloaded, ServiceError, Unavailable
from app.encoders.cache import Answer, VectorCache, cache_key
from app.encoders.checks import check_picture
from app.encoders.faults import EncoderFailed, PictureFault, require_images, require_onnx
from app.encoders.process import SECONDS, ChildLost, EncoderProcess
from app.encoders.rests import Rests
from app.encoders.sandbox import Sandbox
from app.encoders.specification import EncoderSpecification
from app.fair_queue import FairQueue, RecentWork
from app.settings import Settings

logger = logging.getLogger(__name__)

_MAX_ENCODERS: Final = 8
"""Encoders with children at the same time."""
_MAX_OF_TENANT: Final = 5
"""Questions of one tenant that one child has: one is answered, and four wait."""
_MAX_QUESTIONS: Final = 33
"""Questions of all tenants that one child has."""
_OUTSIDE: Final = frozenset({0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP})
"""Exit codes of children that ended by themselves, for want of work, or by others' will."""

Vector = NDArray[np.float32]


@dataclass(slots=True)
class _Lane:
    """One child and the questions it has, by tenant."""

    child: EncoderProcess
    queue: FairQueue
    questions: Counter[str] = field(default_factory=Counter)


def _no_file(digest: str) -> bytes:
    raise NotFound(f"There is no file of the encoder {digest}.", code="encoder_not_found")


def _go_on() -> None:
    """Nothing ends the waiting."""


class EncoderPool:
    """One pool of a process. Its children start with the first question and end after five idle minutes.

    Each encoder has children of its own, so that a file of one tenant never shares a process with pictures of
    another encoder. A child that dies or stands still costs its question a second try or an error, and no
    other one anything.

    processes: children of one encoder. cache_bytes: of vectors that are kept, 0 for none. sandbox: what the
    children give up, see `app.encoders.sandbox`. file: returns the bytes of an encoder's file by its digest.
    """

    def __init__(
        self,
        *,
        processes: int = 1,
        cache_bytes: int = 64 * 1024**2,
        sandbox: Sandbox = "seccomp",
        file: Callable[[str], bytes] = _no_file,
    ) -> None:
        self.cache = VectorCache(cache_bytes)
        self.restarts = 0
        self._processes = processes
        self._sandbox = sandbox
        self._file = file
        self._work = RecentWork()
        self._rests = Rests()
        self._lanes: OrderedDict[str, list[_Lane]] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False
        self._trials = FairQueue(self._work)
        most = _MAX_ENCODERS * processes * _MAX_QUESTIONS
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="encoder")

    @classmethod
    def of(cls, settings: Settings, file: Callable[[str], bytes] = _no_file) -> EncoderPool:
        """The pool of a process with these settings."""
        return cls(
            processes=settings.encoder_processes,
            cache_bytes=settings.encoder_cache_mb * 1024**2,
            sandbox=settings.encoder_sandbox,
            file=file,
        )

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that run."""
        with self._lock:
            lanes = [lane for of_encoder in self._lanes.values() for lane in of_encoder]
        return [lane.child.pid for lane in lanes if lane.child.pid is not None]

    async def vector(self, encoder: EncoderSpecification, picture: bytes, *, tenant: str) -> Vector:
        """The numbers (width) of a picture; nobody can change them.

        Raises PictureFault if something is wrong with the picture, Overloaded with the code encoder_busy if
        too many pictures wait, Unavailable with encoder_unavailable or encoder_differs if the encoder dies,
        rests or computes other numbers here, and InvalidRequest if the libraries are not installed.
        """
        answer = self._quick(encoder, picture)
        if answer is None:
            self._require_room(encoder, tenant)
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(
                self._threads, lambda: self._answer(encoder, picture, tenant, _go_on, limited=True)
            )
        if isinstance(answer, PictureFault):
            raise answer
        return answer

    def vectors(
        self,
        encoder: EncoderSpecification,
        pictures: Sequence[bytes],
        *,
        tenant: str,
        check: Callable[[], None] = _go_on,
    ) -> list[Vector | PictureFault]:
        """The numbers of many pictures, in their order; a faulty picture is a value. Blocks the thread.

        check: called often, also while the pictures wait; it ends the waiting by an exception. Raises the
        same as `vector` but PictureFault and Overloaded.
        """

        def answer(picture: bytes) -> Answer:
            check()
            quick = self._quick(encoder, picture)
            if quick is not None:
                return quick
            return self._answer(encoder, picture, tenant, check, limited=False)

        if self._processes == 1:
            return [answer(picture) for picture in pictures]
        with ThreadPoolExecutor(self._processes) as threads:
            return list(threads.map(answer, pictures))

    def trial(self, encoder: EncoderSpecification, file: bytes) -> EncoderSpecification:
        """The encoder with its width and its probe, after a child has asked it the probes twice.

        One trial runs at a time, in the calling thread. Raises InvalidRequest with the code encoder_failed,
        encoder_unstable, encoder_too_slow, encoder_too_costly, bad_encoder_output or encoders_not_installed,
        and Unavailable with sandbox_missing where own encoders do not run.
        """
        require_onnx()
        with self._trials.turn(Caller("", ""), self._check_open):
            child = EncoderProcess(encoder, self._sandbox, lambda: file, is_trial=True)
            try:
                ready = child.start()
            except EncoderFailed as failed:
                raise InvalidRequest(failed.message, code=failed.code) from None
            except ChildLost as lost:
                raise _trial_fault(lost) from None
            finally:
                child.end()
        return replace(encoder, width=ready.width, probe=ready.probe)

    async def close(self) -> None:
        """End all children; questions that wait raise Unavailable."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """The same as `close`, in the calling thread."""
        with self._lock:
            self._closed = True
            lanes = [lane for of_encoder in self._lanes.values() for lane in of_encoder]
            self._lanes.clear()
        for lane in lanes:
            lane.child.close()
        self._threads.shutdown(wait=True)
        for lane in lanes:
            lane.child.end()

    def _quick(self, encoder: EncoderSpecification, picture: bytes) -> Answer | None:
        """The answer without a child, if it is kept or the header shows a fault."""
        answer = self.cache.get(cache_key(picture, encoder.identity))
        if answer is None:
            try:
                check_picture(picture)
            except PictureFault as fault:
                return fault
        return answer

    def _answer(
        self,
        encoder: EncoderSpecification,
        picture: bytes,
        tenant: str,
        check: Callable[[], None],
        *,
        limited: bool,
    ) -> Answer:
        """Ask a child in turn, and once more if the first one was ended from outside."""
        (require_images if encoder.is_built_in else require_onnx)()
        key, rest = cache_key(picture, encoder.identity), (encoder.identity, tenant)
        for is_last in (False, True):
            self._rests.check(rest, encoder.name)
            try:
                with self._turn(encoder, tenant, check, limited=limited) as child:
                    answer = self.cache.get(key)
                    if answer is None:
                        answer = child.ask(picture)
            except EncoderFailed as failed:
                self._rests.note_death(rest)
                raise Unavailable(failed.message, code="encoder_unavailable", retry_after=60.0) from None
            except ChildLost as lost:
                self._check_open()
                self.restarts += 1
                if lost.exit_code == 0 and not is_last:
                    continue
                self._rests.note_death(rest)
                logger.warning("a child of the encoder %s ended with code %d", encoder.name, lost.exit_code)
                if (lost.is_late or lost.exit_code in _OUTSIDE) and not is_last:
                    continue
                answer = _fault_of(encoder, lost)
            if isinstance(answer, np.ndarray):
                answer.flags.writeable = False
            self.cache.put(key, answer)
            return answer
        raise AssertionError("the last try answers or raises")

    @contextmanager
    def _turn(
        self, encoder: EncoderSpecification, tenant: str, check: Callable[[], None], *, limited: bool
    ) -> Iterator[EncoderProcess]:
        """Wait for a child of the encoder. Raises Overloaded if too many wait, and what ``check`` raises."""

        def wanted() -> None:
            self._check_open()
            check()

        caller = Caller(tenant, "")
        with self._lock:
            lane = self._chosen(encoder)
            if limited:
                _require_room(lane, tenant)
            lane.questions[tenant] += 1
        try:
            with lane.queue.turn(caller, wanted):
                wanted()
                start = time.monotonic()
                try:
                    yield lane.child
                finally:
                    self._work.add(caller, time.monotonic() - start)
        finally:
            with self._lock:
                lane.questions[tenant] -= 1
                lane.questions = +lane.questions

    def _require_room(self, encoder: EncoderSpecification, tenant: str) -> None:
        self._check_open()
        with self._lock:
            _require_room(self._chosen(encoder), tenant)

    def _chosen(self, encoder: EncoderSpecification) -> _Lane:
        """The lane of the encoder with the fewest questions. The lock is held."""
        lanes = self._lanes.get(encoder.identity)
        if lanes is None:
            self._make_room()
            lanes = self._lanes[encoder.identity] = [
                _Lane(
                    EncoderProcess(encoder, self._sandbox, lambda: self._file(encoder.digest)),
                    FairQueue(self._work),
                )
                for _ in range(self._processes)
            ]
        self._lanes.move_to_end(encoder.identity)
        return min(lanes, key=lambda lane: lane.questions.total())

    def _make_room(self) -> None:
        """End the children of an encoder that nobody asks, if there are as many encoders as may be."""
        if len(self._lanes) < _MAX_ENCODERS:
            return
        for identity, lanes in self._lanes.items():
            if not any(lane.questions.total() for lane in lanes):
                del self._lanes[identity]
                for lane in lanes:
                    lane.child.end()
                return
        raise _busy(f"{_MAX_ENCODERS} encoders are at work; this server runs no more of them at a time.")

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("The server is shutting down.", code="shutting_down")


def _require_room(lane: _Lane, tenant: str) -> None:
    if lane.questions[tenant] >= _MAX_OF_TENANT:
        raise _busy(f"{_MAX_OF_TENANT - 1} pictures of the tenant wait for this encoder already.")
    if lane.questions.total() >= _MAX_QUESTIONS:
        raise _busy("Too many pictures wait for this encoder already.")


def _busy(text: str) -> Overloaded:
    return Overloaded(text, code="encoder_busy", retry_after=1.0)


def _fault_of(encoder: EncoderSpecification, lost: ChildLost) -> PictureFault:
    """What a death says of the picture. Raises Unavailable where it may be no fault of the picture."""
    if lost.is_late or lost.exit_code in _OUTSIDE or not lost.was_ready or not encoder.is_built_in:
        raise _unavailable(encoder, lost)
    if lost.exit_code == -signal.SIGPROF:
        text = f"Decoding the picture takes more than {SECONDS:g} s of processor time. Send a smaller one."
        return PictureFault("image_too_costly", text)
    return PictureFault("broken_image", "The picture cannot be decoded: it ended the process that read it.")


def _unavailable(encoder: EncoderSpecification, lost: ChildLost) -> ServiceError:
    why = "stood still" if lost.is_late else f"ended with code {lost.exit_code}"
    text = f"The process of the encoder {encoder.name} {why}; it is started again for the next picture."
    return Unavailable(text, code="encoder_unavailable", retry_after=2.0)


def _trial_fault(lost: ChildLost) -> InvalidRequest:
    if lost.exit_code == -signal.SIGPROF:
        text = "The encoder takes too much processor time to load and to answer four small pictures."
        return InvalidRequest(text, code="encoder_too_costly")
    text = (
        f"The process that tried the encoder ended with code {lost.exit_code}: it may take too much memory."
    )
    return InvalidRequest(text, code="encoder_failed")
