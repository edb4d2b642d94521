"""Vectors of pictures that were asked before, so that the same picture is encoded once."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.encoders.faults import PictureFault

Key = tuple[bytes, str]
Answer = NDArray[np.float32] | PictureFault

_ENTRY_BYTES: Final = 512
"""What an entry takes beside its numbers."""


def cache_key(data: bytes, identity: str) -> Key:
    """SHA-256 of the bytes, and the identity of the encoder."""
    return hashlib.sha256(data).digest(), identity


class VectorCache:
    """The answers that were used last, up to so many bytes; faults are answers, too. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._answers: OrderedDict[Key, Answer] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: Key) -> Answer | None:
        """The answer, whose vector nobody can change; None if there is none."""
        with self._lock:
            answer = self._answers.get(key)
            if answer is None:
                self.misses += 1
                return None
            self.hits += 1
            self._answers.move_to_end(key)
            return answer

    def put(self, key: Key, answer: Answer) -> None:
        """Keep an answer, and forget those that were not used for longest."""
        size = _size(answer)
        if size > self._max_bytes:
            return
        with self._lock:
            if key in self._answers:
                return
            self._answers[key] = answer
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, oldest = self._answers.popitem(last=False)
                self._bytes -= _size(oldest)


def _size(answer: Answer) -> int:
    return _ENTRY_BYTES + (len(answer.message) if isinstance(answer, PictureFault) else answer.nbytes)
