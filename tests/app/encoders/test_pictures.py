"""Pictures through the pool and a real child: the same bits for the same one, a listed code for any other."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from app.encoders.checks import check_picture
from app.encoders.faults import STATUSES, PictureFault
from app.encoders.pool import EncoderPool
from app.encoders.specification import BUILT_IN, HLC, RND
from tests.pictures import COSTLY, HOSTILE, encoded, good, mutated, pattern, turned


@pytest.fixture
def pool() -> Iterator[EncoderPool]:
    made = EncoderPool()
    yield made
    made.close_now()


def codes(answers: list[object]) -> list[str | None]:
    return [answer.code if isinstance(answer, PictureFault) else None for answer in answers]


def test_hostile_pictures_get_their_codes_and_good_ones_in_between_the_same_bits():
    made = {name: (code, make()) for name, (code, make) in HOSTILE.items()}
    fine = good()["png"]
    pictures = [part for _, data in made.values() for part in (data, fine)]
    fresh = EncoderPool(cache_bytes=0)
    try:
        answers = fresh.vectors(RND, pictures, tenant="t")
        assert dict(zip(made, codes(answers[::2]), strict=True)) == {
            name: code for name, (code, _) in made.items()
        }
        assert len({answer.tobytes() for answer in answers[1::2]}) == 1
        assert fresh.restarts == 0
    finally:
        fresh.close_now()


@pytest.mark.long
def test_costly_pictures_get_their_codes(pool: EncoderPool):
    pictures = [make() for _, make in COSTLY.values()]
    assert codes(pool.vectors(RND, pictures, tenant="t")) == [code for code, _ in COSTLY.values()]
    assert pool.restarts == 0


def test_every_code_has_a_status_and_an_error():
    expected = {"image_too_small": 400, "too_many_pixels": 413, "image_too_costly": 413}
    assert expected.items() <= STATUSES.items()
    for code, status in STATUSES.items():
        fault = PictureFault(code, "Text.")
        assert (fault.status, fault.as_error().reason, fault.as_error().message) == (status, code, "Text.")


@pytest.mark.parametrize("encoder", BUILT_IN.values(), ids=str)
def test_eight_orientations_of_a_picture_have_the_same_bits(encoder, pool: EncoderPool):
    stored = [turned(k, form, **options) for k in range(1, 9) for form, options in FORMS]
    vectors = pool.vectors(encoder, stored, tenant="t")
    assert {vector.tobytes() for vector in vectors} == {vectors[0].tobytes()}
    assert vectors[0].dtype == np.float32
    assert vectors[0].shape == (encoder.width,)
    assert np.unique(vectors[0]).size > 100


FORMS = (("PNG", {}), ("WEBP", {"lossless": True}))


def test_pixels_of_all_forms(pool: EncoderPool):
    """Alpha lies over white, of 16 bits the high byte counts, palettes and greys are what they show."""
    picture = pattern()
    grey = picture.convert("L")
    clear = picture.copy()
    clear.putalpha(grey)
    over_white = Image.composite(picture, Image.new("RGB", picture.size, "white"), grey)
    high = Image.fromarray((np.asarray(grey).astype(np.uint16) << 8) + 77)
    few = picture.quantize(8)
    pairs = {
        "alpha": (clear, over_white),
        "16 bit": (high, grey),
        "palette": (few, few.convert("RGB")),
        "grey": (grey, grey.convert("RGB")),
        "1 bit": (picture.convert("1"), picture.convert("1").convert("RGB")),
    }
    pictures = [encoded(one, "PNG") for pair in pairs.values() for one in pair]
    vectors = pool.vectors(HLC, pictures, tenant="t")
    for name, one, other in zip(pairs, vectors[::2], vectors[1::2], strict=True):
        assert one.tobytes() == other.tobytes(), name
    assert len({vector.tobytes() for vector in vectors[::2]}) == len(pairs) - 1, (
        "16 bit and grey are the same"
    )


def test_a_large_jpeg_is_decoded_at_a_smaller_scale_to_nearly_the_same_numbers(pool: EncoderPool):
    """Scaled by its transform, it looks as it does when it is decoded whole and stored as PNG."""
    picture = pattern(48, 40).resize((1600, 1200), Image.Resampling.BICUBIC)
    jpeg = encoded(picture, "JPEG", quality=95)
    whole = encoded(Image.open(io.BytesIO(jpeg)), "PNG")
    one, other = pool.vectors(HLC, [jpeg, whole], tenant="t")
    assert np.linalg.norm(one - other) < 0.1 * np.linalg.norm(other)


@given(
    st.binary(max_size=200)
    | st.sampled_from([b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBPVP8X"]).flatmap(
        lambda magic: st.binary(max_size=200).map(magic.__add__)
    )
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_have_a_header_or_a_listed_code(data: bytes):
    try:
        header = check_picture(data)
    except PictureFault as fault:
        assert fault.code in STATUSES  # noqa: PT017
    else:
        assert header.media_type in {"image/jpeg", "image/png", "image/webp"}
        assert min(header.width, header.height) >= 8


def test_mutated_pictures_have_a_vector_or_a_listed_code(pool: EncoderPool):
    answers = pool.vectors(RND, list(itertools.islice(mutated(1), 400)), tenant="t")
    assert {code for code in codes(answers) if code} <= set(STATUSES)
    assert 20 < sum(code is None for code in codes(answers)) < 300
    assert pool.restarts == 0


@pytest.mark.long
@given(data=st.binary(max_size=2000))
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_in_a_child_have_a_listed_code(pool: EncoderPool, data: bytes):
    seeds = list(good().values())
    start = seeds[len(data) % len(seeds)]
    [answer] = pool.vectors(RND, [start[: len(start) // 2] + data], tenant="t")
    assert not isinstance(answer, PictureFault) or answer.code in STATUSES
    assert pool.restarts == 0
