"""Decompression of bodies: round trips, limits and damaged data."""

from __future__ import annotations

import contextlib
import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest, ServiceError, TooLarge
from app.http.decompression import FREE_BYTES, MAX_RATIO, decompress
from tests.refusals import refused_as

LIMIT = 1 << 22


@given(st.binary(max_size=3000), st.sampled_from([gzip.compress, zlib.compress]), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_decompression_inverts_compression(data: bytes, pack: object, level: int):
    packed = pack(data, level) if pack is zlib.compress else gzip.compress(data, level)
    assert decompress(packed, LIMIT) == data
    assert decompress(bytearray(packed), LIMIT) == data


def test_large_bodies_are_decompressed_completely():
    data = bytes(range(256)) * 4096
    assert decompress(gzip.compress(data), LIMIT) == data


def test_several_gzip_members_are_concatenated():
    assert (
        decompress(gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two"), LIMIT) == b"one two"
    )


@given(st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_a_truncated_body_is_refused(cut: int):
    packed = gzip.compress(bytes(range(100)))
    with pytest.raises(InvalidRequest, match="Content-Encoding"):
        decompress(packed[:-cut], LIMIT)


def test_trailing_bytes_are_refused():
    with pytest.raises(InvalidRequest):
        decompress(gzip.compress(b"{}") + b"more", LIMIT)
    with pytest.raises(InvalidRequest):
        decompress(b"", LIMIT)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_decompressed_or_refused(data: bytes):
    with contextlib.suppress(ServiceError):
        assert len(decompress(b"\x1f\x8b\x08\x00" + data, 1000)) <= 1000


def test_a_bomb_costs_no_more_memory_than_the_limit():
    bomb = gzip.compress(bytes(200_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge) as caught:
            decompress(bomb, LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.reason == "body_too_large"
    assert peak < 2 * LIMIT


def test_the_compression_ratio_is_bounded_for_large_outputs():
    assert len(decompress(zlib.compress(bytes(FREE_BYTES)), 1 << 30)) == FREE_BYTES
    packed = zlib.compress(bytes(2 * FREE_BYTES))
    assert len(packed) * MAX_RATIO < 2 * FREE_BYTES
    with refused_as(TooLarge, "body_unpacks_too_far"):
        decompress(packed, 1 << 30)


def test_the_number_of_streams_in_a_body_is_bounded():
    """Two million empty streams took 3 s of a core, and no rule of size saw them."""
    empty = zlib.compress(b"")
    assert decompress(empty * 10_000, LIMIT) == b""
    with refused_as(TooLarge, "too_many_members", match="10000"):
        decompress(empty * 1_000_000, 16 << 20)
